"""Real shifts for the benchmarks: Digits × SmallCNN and PACS × EfficientNet-B0, leave one domain out.

The Digits folder holds mnist.npz, usps.npz and svhn.npz (x_train, y_train, x_test, y_test); the PACS folder
<domain>/<class>/<image>; the weights are ImageNet weights of timm's tf_efficientnet_b0 in a safetensors file.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.metrics import accuracy, entropy, expected_calibration_error, negative_log_likelihood

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
METRICS = ("accuracy", "ece", "entropy", "nll")
Domains = dict[str, tuple[Tensor, Tensor]]


class EfficientNet(nn.Module):
    """EfficientNet-B0 with its preprocessing inside: takes raw 0-255 images."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: dict[str, Tensor], classes: int) -> None:
        super().__init__()
        self.backbone = timm.create_model("tf_efficientnet_b0", num_classes=classes)
        body = {name: t.float() for name, t in weights.items() if not name.startswith("classifier.")}
        missing, unexpected = self.backbone.load_state_dict(body, strict=False)
        if unexpected or not all(name.startswith("classifier.") for name in missing):
            raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1) * 255)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of raw images."""
        logits: Tensor = self.backbone((images - self.mean) / self.std)
        return logits


def read_digits(folder: Path, device: str) -> Domains:
    """MNIST, USPS and SVHN, training and test images together, as 32-pixel grey images."""
    domains = {}
    for name in ("mnist", "usps", "svhn"):
        with np.load(folder / f"{name}.npz") as arrays:
            x = torch.from_numpy(np.concatenate([arrays["x_train"], arrays["x_test"]]))
            y = torch.from_numpy(np.concatenate([arrays["y_train"], arrays["y_test"]]))
        x = nn.functional.interpolate(x.float().unsqueeze(1), size=(32, 32), mode="bilinear")
        domains[name] = (x.round().to(torch.uint8).to(device), y.long().to(device))
    return domains


def read_pacs(folder: Path, device: str) -> Domains:
    """Every domain as uint8 images and labels, in memory."""
    domains = {}
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    classes = sorted(path.name for path in (folder / names[0]).iterdir() if path.is_dir())
    for domain in names:
        files = [
            (file, k) for k, name in enumerate(classes) for file in sorted((folder / domain / name).iterdir())
        ]

        def pixels(entry: tuple[Path, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
            return np.asarray(Image.open(entry[0]).convert("RGB").resize((227, 227)))

        with ThreadPoolExecutor(16) as pool:
            images = np.stack(list(pool.map(pixels, files)))
        domains[domain] = (
            torch.from_numpy(images).permute(0, 3, 1, 2).to(device),
            torch.tensor([k for _, k in files], device=device),
        )
    return domains


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """The paper's optimisers (Adam for SmallCNN, else RMSprop at 2e-4) in mixed precision."""
    model.to(x.device).train()
    optimiser: torch.optim.Optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-4, alpha=0.9, eps=1e-7)
    if isinstance(model, eq.models.SmallCNN):
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(64):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x[rows].float()), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def scores(logits: Tensor, target: Tensor) -> dict[str, float]:
    """The paper's four numbers."""
    return {
        "accuracy": float(accuracy(logits=logits, target=target)),
        "ece": float(expected_calibration_error(logits=logits, target=target)),
        "entropy": float(entropy(logits=logits)),
        "nll": float(negative_log_likelihood(logits=logits, target=target)),
    }


class Store:
    """Lines of JSON in a file, one a run; a run that is there is not made again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def has(self, key: dict[str, Any]) -> bool:
        """Whether a run is there, by all that tells it from others."""
        return any(all(line.get(name) == value for name, value in key.items()) for line in self.lines)

    def add(self, line: dict[str, Any]) -> None:
        """Write a run at once, so that a kill loses only the one under way."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.lines.append(line)
        print(json.dumps(line), flush=True)


def arguments(about: str) -> argparse.Namespace:
    """The command line of a benchmark on these shifts."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--pacs", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


class Shift:
    """A held-out domain, and the model that was trained on the others (when it is first asked for)."""

    def __init__(self, domains: Domains, target: str, seed: int, epochs: int, weights: Path | None) -> None:
        self.target, self.seed = target, seed
        self.x, self.y = domains[target]
        self._others = [pair for name, pair in domains.items() if name != target]
        self._epochs, self._weights = epochs, weights
        self._model: nn.Module | None = None

    @property
    def source_images(self) -> Tensor:
        """The images it was trained on."""
        return torch.cat([images for images, _ in self._others])

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        if self._model is None:
            torch.manual_seed(self.seed)
            fresh: nn.Module = eq.models.SmallCNN()
            if self._weights is not None:
                fresh = EfficientNet(load_file(self._weights), int(self.y.max()) + 1)
            labels = torch.cat([labels for _, labels in self._others])
            self._model = train(fresh, self.source_images, labels, self._epochs)
        return self._model

    def measured(self) -> eq.SourceStatistics:
        """The model's statistics on all the images it was trained on."""
        loader = (batch.float() for batch in self.source_images.split(200))
        return eq.SourceStatistics.measure(self.model, loader, progress=False)

    def stream(self) -> tuple[list[Tensor], Tensor]:
        """At most 10,000 images of the held-out domain, shuffled, in batches of 50, and their labels."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))[:10_000]
        order = order.to(self.x.device)
        return [self.x[rows].float() for rows in order.split(50)], self.y[order]


def shifts(args: argparse.Namespace) -> Iterator[tuple[str, Shift]]:
    """Every held-out domain of the data set named on the command line, for every seed."""
    if args.digits:
        data, domains, weights = "digits", read_digits(args.digits, args.device), None
    elif args.pacs and args.weights:
        data, domains, weights = "pacs", read_pacs(args.pacs, args.device), args.weights
    else:
        return
    for seed in args.seeds:
        for target in domains:
            yield data, Shift(domains, target, seed, args.epochs, weights)
