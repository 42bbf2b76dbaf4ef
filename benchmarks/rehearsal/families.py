"""The models and streams of the rehearsal benchmark: trained on part of the source images, met by the rest.

After a change of shares, epochs or sizes here take a new folder of models: weights that were trained before
are read as they are, and may have seen the images that are kept aside now.

Digits (SmallCNN), PACS and TinyImageNet-C (EfficientNet-B0, MobileNet) are those of the paper's recipes, with
fewer epochs; SVHN with a batch-norm ResNet, a group-norm ResNet and a small ViT, trained with augmentation
and weight decay, are models of another kind that are honest to begin with. "Doubtful" ones are
under-confident: trained with smoothed labels and mixed images (benchmarks/estimators has what that is).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from benchmarks.estimators.subjects import BATCH, SMOOTHED, loss_of, train
from equipoise.research.data import Reader, open_data_set
from equipoise.research.data.corruptions import DETERMINISTIC, RANDOM, corrupt
from equipoise.research.data.images import Images
from equipoise.research.experiment.trained_model import on_device
from equipoise.research.experiment.training import TrainingStep
from equipoise.research.models import create_backbone

CORRUPTIONS = tuple(RANDOM) + tuple(DETERMINISTIC)
TIERS = (1, 3, 5)
STREAM = 1000
"""The images of each corruption and tier."""

TINY_SIDE = 96
"""The pixels that images of TinyImageNet are resized to inside the model."""

SAMPLES = 2000
"""The most images of a rehearsal, of unseen source data and of a target."""

NAMES = (
    *(f"digits {domain}" for domain in ("mnist", "usps", "svhn")),
    *(
        f"pacs {network} {domain}"
        for network in ("efficientnet_b0", "mobilenet_v1")
        for domain in ("photo", "art_painting", "cartoon", "sketch")
    ),
    *(f"tin {network}" for network in ("efficientnet_b0", "mobilenet_v1", "mobilenet_v1 doubtful")),
    *(f"svhn {kind}" for kind in ("bn", "gn", "vit", "bn doubtful", "gn doubtful")),
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            _norm(norm, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            _norm(norm, after),
        )
        plain = before == after and stride == 1
        short = [nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after)]
        self.short = nn.Identity() if plain else nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        made: Tensor = (self.body(x) + self.short(x)).relu()
        return made


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "bn" else nn.GroupNorm(8, channels)


class ResNet(nn.Module):
    """Five blocks with batch norm ("bn") or group norm ("gn")."""

    def __init__(self, classes: int, norm: str, channels: int = 1, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(norm, width), nn.ReLU()
        )
        sizes = [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        self.body = nn.Sequential(*[Block(a * width, b * width, s, norm) for a, b, s in sizes])
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        made: Tensor = self.head(self.body(self.stem(x.float() / 127.5 - 1)).mean((2, 3)))
        return made


class ViT(nn.Module):
    """Five transformer layers with layer norm on patches of four pixels."""

    def __init__(self, classes: int, channels: int = 1, width: int = 128, depth: int = 5) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layers = [
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.body = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        tokens = self.embed(x.float() / 127.5 - 1).flatten(2).transpose(1, 2) + self.position
        made: Tensor = self.head(self.norm(self.body(tokens)).mean(1))
        return made


@dataclass(frozen=True)
class Family:
    """A trained model with images that it has not seen.

    Attributes:
        model: in evaluation mode.
        rehearsal: held-out source images.
        unseen: other held-out source images.
        streams: images of the target domain, or of every corruption and tier.
    """

    model: nn.Module
    rehearsal: Images
    unseen: Images
    streams: dict[str, Images]


def load(
    name: str, data: Path, models: Path, workers: int, corruptions: Sequence[str] = CORRUPTIONS
) -> Family:
    """Train the model of a name, or read it from `models`, where it is left in half precision.

    SVHN and TinyImageNet have a stream for each of the corruptions and tiers.
    """
    family, *rest = name.split()
    torch.manual_seed(0)
    tasks = [(corruption, tier) for tier in TIERS for corruption in corruptions]
    makers: dict[str, Callable[..., Family]] = {
        "digits": _digits,
        "pacs": _pacs,
        "svhn": partial(_svhn, tasks=tasks),
        "tin": partial(_tiny, tasks=tasks),
    }
    return makers[family](rest, data, models / f"{name.replace(' ', '-')}.pt", workers)


def _digits(rest: list[str], data: Path, path: Path, _: int) -> Family:
    digits, reader, (domain,) = open_data_set("digits", data), Reader(workers=1), rest
    sources = [name for name in ("mnist", "usps", "svhn") if name != domain]
    images = Images.join([digits.read(f"{name}/train", None, reader) for name in sources])
    tests = Images.join([digits.read(f"{name}/test", None, reader) for name in sources])
    seen, held = split(images.labels, 0.1)
    model = create_backbone("smallcnn", 10, in_channels=1)
    fit = partial(fit_recipe, model, optimizer="adam", rate=1e-3, epochs=5)
    _train_once(model, fit, images.select(seen), path)
    target = shuffled(digits.read(f"{domain}/test", None, reader), 2)
    return Family(model, images.select(held[:SAMPLES]), shuffled(tests, 1), {"target": target})


def _svhn(rest: list[str], data: Path, path: Path, workers: int, tasks: list[tuple[str, int]]) -> Family:
    digits, reader, (kind, *doubtful) = open_data_set("digits", data), Reader(workers=1), rest
    images, tests = (digits.read(f"svhn/{part}", None, reader) for part in ("train", "test"))
    seen, held = split(images.labels, 0.1)
    model = ViT(10) if kind == "vit" else ResNet(10, kind)
    fit = partial(fit_augmented, model, epochs=16, smoothed=SMOOTHED if doubtful else 0.0)
    _train_once(model, fit, images.select(seen), path)
    clean = shuffled(tests, 2).select(torch.arange(STREAM))
    made = corrupted(clean.pixels, tasks, workers)
    streams = {label: Images(pixels, clean.labels) for label, pixels in made.items()}
    return Family(model, images.select(held[:SAMPLES]), shuffled(tests, 1), streams)


def _pacs(rest: list[str], data: Path, path: Path, workers: int) -> Family:
    pacs, reader, (network, domain) = open_data_set("pacs", data), Reader(workers=workers), rest
    others = [name for name in ("art_painting", "cartoon", "photo", "sketch") if name != domain]
    images = Images.join([pacs.read(name, None, reader) for name in others])
    seen, held = split(images.labels, 0.15)
    model = create_backbone(network, 7, weights=data / "weights" / f"{network}.safetensors")
    fit = partial(fit_recipe, model, optimizer="rmsprop", rate=2e-4, epochs=8)
    _train_once(model, fit, images.select(seen), path)
    cut = len(held) * 2 // 3
    target = shuffled(pacs.read(domain, None, reader), 2)
    return Family(model, images.select(held[:cut]), images.select(held[cut:]), {"target": target})


def _tiny(rest: list[str], data: Path, path: Path, workers: int, tasks: list[tuple[str, int]]) -> Family:
    tiny, reader = open_data_set("tiny-imagenet-c", data), Reader(workers=workers)
    network, *doubtful = rest
    images = tiny.read("train", None, reader)
    seen, held = split(images.labels, 0.15)
    weights = data / "weights" / f"{network}.safetensors"
    model = create_backbone(network, 200, weights=weights, input_size=TINY_SIDE)
    plain = partial(fit_recipe, optimizer="rmsprop")
    fit = partial(fit_doubtful if doubtful else plain, model, rate=2e-4, epochs=6)
    _train_once(model, fit, images.select(seen), path)
    labels = [f"{name}/{tier}" for name, tier in tasks]
    streams = {label: shuffled(tiny.read(label, STREAM, reader), 2) for label in labels}
    return Family(model, images.select(held[:SAMPLES]), images.select(held[SAMPLES:]), streams)


def shuffled(images: Images, seed: int) -> Images:
    """At most `SAMPLES` images in random order."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.select(order[:SAMPLES])


def split(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to keep aside, a share of each class, seeded."""
    draw, held = torch.Generator().manual_seed(0), []
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=draw)]
        held.append(rows[: round(len(rows) * share)])
    aside = torch.cat(held)
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[aside] = False
    return kept.nonzero().flatten(), aside[torch.randperm(len(aside), generator=draw)]


def _train_once(model: nn.Module, fit: Callable[[Images], None], images: Images, path: Path) -> None:
    if not path.exists():
        fit(images)
        half = {
            k: v.half().cpu() if v.is_floating_point() else v.cpu() for k, v in model.state_dict().items()
        }
        torch.save(half, path)
    stored = torch.load(path, weights_only=True)
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in stored.items()})
    model.to(DEVICE).eval().requires_grad_(False)


def fit_recipe(model: nn.Module, images: Images, optimizer: str, rate: float, epochs: int) -> None:
    """Train as the paper's recipes do, without augmentation."""
    on_device(model, DEVICE)
    parameters, cuda = list(model.parameters()), DEVICE.type == "cuda"
    descent: torch.optim.Optimizer
    if optimizer == "adam":
        descent = torch.optim.Adam(parameters, lr=rate, eps=1e-7, capturable=cuda)
    else:
        descent = torch.optim.RMSprop(parameters, lr=rate, alpha=0.9, eps=1e-7, capturable=cuda)
    model.train()
    step = TrainingStep(model, descent, images, 64)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for rows in order.to(DEVICE).split(64):
            if len(rows) > 1:
                step(rows)


def fit_doubtful(model: nn.Module, images: Images, rate: float, epochs: int) -> None:
    """Train without augmentation, to be under-confident."""
    pixels, labels = images.pixels.to(DEVICE), images.labels.to(DEVICE)
    train(model.to(DEVICE), pixels, labels, epochs * len(labels) // BATCH, rate, SMOOTHED)


def fit_augmented(
    model: nn.Module, images: Images, epochs: int, batch: int = 128, smoothed: float = 0.0
) -> None:
    """Train with random crops, weight decay and one cycle of the learning rate."""
    model.to(DEVICE).train()
    pixels, labels = images.pixels.to(DEVICE), images.labels.to(DEVICE)
    descent = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(labels) // batch)
    cycle = torch.optim.lr_scheduler.OneCycleLR(descent, 2e-3, total_steps=steps + 1)
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch)).to(DEVICE)
        for rows in order[: len(order) // batch * batch].split(batch):
            x = pad(pixels[rows].float(), (3,) * 4, mode="replicate")
            top, left = torch.randint(0, 7, (2,)).tolist()
            loss = loss_of(model, x[:, :, top : top + 32, left : left + 32], labels[rows], smoothed)
            descent.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            descent.step()
            cycle.step()


# ---------------------------------------------------------------------- streams


def orders(labels: Tensor) -> dict[str, Tensor]:
    """Rows in random order, by class, and with class shares over time from a Dirichlet distribution of .1."""
    draw = torch.Generator().manual_seed(9)
    slots: list[list[Tensor]] = [[] for _ in range(20)]
    shares = torch.distributions.Dirichlet(torch.full((20,), 0.1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        for label in labels.unique():
            rows = (labels == label).nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=draw)]
            ends = (shares.sample().cumsum(0) * len(rows)).long().clamp(max=len(rows))
            ends[-1] = len(rows)
            for slot, part in zip(slots, rows.tensor_split(ends[:-1]), strict=True):
                slot.append(part)
    mixed = [torch.cat(slot) for slot in slots]
    correlated = torch.cat([slot[torch.randperm(len(slot), generator=draw)] for slot in mixed])
    return {
        "shuffled": torch.arange(len(labels)),
        "sorted": labels.argsort(stable=True),
        "dirichlet": correlated,
    }


def mild(pixels: Tensor) -> dict[str, Tensor]:
    """Images dimmed, flattened, blurred and noisy by several strengths, and inverted."""
    x, draw = pixels.float(), torch.Generator().manual_seed(5)
    mean, channels = x.mean((1, 2, 3), keepdim=True), x.shape[1]
    made = {f"dimmed to {k}": x * k for k in (0.6, 0.3)}
    made |= {f"contrast {k}": (x - mean) * k + mean for k in (0.6, 0.3)}
    for sigma in (0.7, 1.5, 3.0):
        reach = int(3 * sigma)
        taps = torch.arange(-reach, reach + 1).float()
        kernel = (-(taps**2) / 2 / sigma**2).exp()
        kernel = (kernel / kernel.sum()).repeat(channels, 1, 1, 1)
        rows = conv2d(pad(x, (reach,) * 4, mode="replicate"), kernel, groups=channels)
        made[f"blur {sigma}"] = conv2d(rows, kernel.transpose(2, 3), groups=channels)
    for strength in (10, 25, 50, 100):
        made[f"noise {strength}"] = x + strength * torch.randn(x.shape, generator=draw)
    made["inverted"] = 255 - x
    return {name: value.clamp(0, 255).round().to(torch.uint8) for name, value in made.items()}


def _corrupted(task: tuple[Tensor, str, int]) -> Tensor:
    torch.set_num_threads(1)
    pixels, name, tier = task
    made = corrupt(pixels.permute(0, 2, 3, 1).contiguous().numpy(), name, tier, range(len(pixels)))
    return torch.from_numpy(made).permute(0, 3, 1, 2).contiguous()


def corrupted(pixels: Tensor, tasks: list[tuple[str, int]], workers: int) -> dict[str, Tensor]:
    """Corruptions of images at tiers; grey images are shown three times, and the first is taken."""
    colour = pixels.expand(-1, 3, -1, -1)
    with ProcessPoolExecutor(workers) as pool:
        made = pool.map(_corrupted, [(colour, name, tier) for name, tier in tasks])
        return {
            f"{name}/{tier}": x[:, : pixels.shape[1]] for (name, tier), x in zip(tasks, made, strict=True)
        }
