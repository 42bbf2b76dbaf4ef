"""The classifiers and streams that estimates are measured on: tables in order of time, digits, and PACS.

Another source of data is another generator of `Case`, given to `measure_estimates.measure`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, one_hot

from equipoise.research.data import Reader, open_data_set
from equipoise.research.data.images import Images
from equipoise.research.models import SmallCNN, create_backbone

DOMAINS = ("mnist", "usps", "svhn")
IMAGES = 12_000
"""The training images of a source domain; USPS has fewer."""

SMOOTHED = 0.2
"""The smoothing of labels that makes a network under-confident."""

HELD_OUT_IMAGES = 1_000
STREAM_IMAGES = 1_500
IMAGE_SHIFTS = 16
EPOCHS = 3
"""Of the images."""

PICTURE_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
SIDE = 96
"""The pixels that pictures of PACS are resized to."""

PICTURES = 2_000
"""The pictures of a domain of PACS in training, and in a stream."""

STEPS = 3_000
"""Of the training on a table."""

BATCH, HIDDEN = 64, 64

Labelled = tuple[Tensor, Tensor]
"""Inputs and labels."""

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Of pictures; tables stay on the CPU."""


@dataclass(frozen=True)
class Subject:
    """A trained classifier with data that it was not trained on.

    Attributes:
        model: in eval mode.
        held_out: labelled source data, for the rehearsal and for the estimators that need labels.
        streams: by name, in order.
        samples: of the held-out data, how many are rehearsed at most.
        shifts: how many built-in shifts are rehearsed; None: all.
    """

    model: nn.Module
    held_out: Labelled
    streams: Mapping[str, Labelled]
    samples: int = 2000
    shifts: int | None = None


@dataclass(frozen=True)
class Case:
    """The name of a subject, and the function that makes it.

    Attributes:
        kind: of the data, "table", "digits", "under-confident digits" or "pacs".
        data: its name.
        network: the name of the network.
        seed: of the training.
        make: trains the network.
    """

    kind: str
    data: str
    network: str
    seed: int
    make: Callable[[], Subject]


def tables(folder: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """A case for each .npz file of the folder, kind of normalisation and seed.

    A file has x_train, y_train, x_held, y_held, x_stream and y_stream: rows of numbers, and classes.
    """
    for seed in seeds:
        for path in sorted(folder.glob("*.npz")):
            for norm in ("batch norm", "layer norm"):
                yield Case("table", path.stem, f"MLP, {norm}", seed, partial(_table, path, norm, seed))


def digits(folder: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """A case for each domain that is left out of training, and seed."""
    for seed in seeds:
        for domain in DOMAINS:
            yield Case("digits", domain, "SmallCNN", seed, partial(_digits, folder, domain, seed))


def doubtful_digits(folder: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """The same, trained with label smoothing and mixup, which make a network under-confident."""
    for seed in seeds:
        for domain in DOMAINS:
            make = partial(_digits, folder, domain, seed, SMOOTHED)
            yield Case("under-confident digits", domain, "SmallCNN", seed, make)


def pacs(folder: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """A case for each domain that a MobileNet is not trained on, and seed."""
    for seed in seeds:
        for domain in PICTURE_DOMAINS:
            yield Case("pacs", domain, "MobileNet", seed, partial(_pacs, folder, domain, seed))


def _table(path: Path, norm: str, seed: int) -> Subject:
    with np.load(path, allow_pickle=False) as arrays:
        x_train, x_held, x_stream = (
            torch.from_numpy(arrays[f"x_{part}"]).float() for part in ("train", "held", "stream")
        )
        y_train, y_held, y_stream = (
            torch.from_numpy(arrays[f"y_{part}"]).long() for part in ("train", "held", "stream")
        )
    torch.manual_seed(seed)
    model = mlp(x_train.shape[1], int(y_train.max()) + 1, norm)
    train(model, x_train, y_train, STEPS)
    return Subject(model, (x_held, y_held), {"in order": (x_stream, y_stream)})


def mlp(columns: int, classes: int, norm: str) -> nn.Sequential:
    """Two hidden layers of 64 with "batch norm" or "layer norm"."""
    layer = nn.BatchNorm1d if norm == "batch norm" else nn.LayerNorm
    widths = (columns, HIDDEN, HIDDEN)
    hidden = [
        part
        for before, after in pairwise(widths)
        for part in (nn.Linear(before, after), layer(after), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, classes))


def _digits(folder: Path, domain: str, seed: int, smoothed: float = 0.0) -> Subject:
    read, reader = open_data_set("digits", folder).read, Reader()
    sources = [name for name in DOMAINS if name != domain]
    draw = torch.Generator().manual_seed(seed)
    aside = HELD_OUT_IMAGES // len(sources)
    known = [_drawn(read(f"{name}/train", IMAGES + aside, reader), draw) for name in sources]
    held = Images.join([images.select(torch.arange(aside)) for images in known])
    kept = Images.join([images.select(torch.arange(aside, len(images))) for images in known])
    torch.manual_seed(seed)
    model = SmallCNN().to(DEVICE)
    steps = EPOCHS * len(kept) // BATCH
    train(model, kept.pixels.to(DEVICE), kept.labels.to(DEVICE), steps, smoothed=smoothed)
    part = STREAM_IMAGES // len(sources)
    unseen = Images.join([read(f"{name}/test", part, reader) for name in sources])
    target = _drawn(read(f"{domain}/test", STREAM_IMAGES, reader), draw)
    by_class = target.select(target.labels.argsort(stable=True))
    streams = {
        "random order": target,
        "sorted by class": by_class,
        "unseen source images": _drawn(unseen, draw),
    }
    met = {name: _placed(images) for name, images in streams.items()}
    return Subject(model, _placed(_drawn(held, draw)), met, HELD_OUT_IMAGES, IMAGE_SHIFTS)


def _pacs(folder: Path, domain: str, seed: int) -> Subject:
    read, reader = open_data_set("pacs", folder).read, Reader(workers=4)
    sources = [name for name in PICTURE_DOMAINS if name != domain]
    draw = torch.Generator().manual_seed(seed)
    aside = HELD_OUT_IMAGES // len(sources)
    known = [_drawn(read(name, PICTURES, reader), draw) for name in sources]
    held, unseen, kept = (
        _drawn(Images.join([images.select(torch.arange(len(images))[part]) for images in known]), draw)
        for part in (slice(aside), slice(aside, 2 * aside), slice(2 * aside, None))
    )
    torch.manual_seed(seed)
    weights = folder / "weights" / "mobilenet_v1.safetensors"
    model = create_backbone("mobilenet_v1", 7, weights=weights).to(DEVICE)
    x, y = _shown(kept)
    train(model, x, y.to(DEVICE), EPOCHS * len(kept) // BATCH, rate=2e-4)
    target = _drawn(read(domain, PICTURES, reader), draw)
    streams = {
        "random order": target,
        "sorted by class": target.select(target.labels.argsort(stable=True)),
        "unseen source images": unseen,
    }
    met = {name: _shown(images) for name, images in streams.items()}
    return Subject(model, _shown(held), met, HELD_OUT_IMAGES, IMAGE_SHIFTS)


def _placed(images: Images) -> Labelled:
    """Digits on the device, and their labels."""
    return images.pixels.to(DEVICE).float(), images.labels


def _shown(images: Images) -> Labelled:
    """Pictures on the device, at the size that the model is trained for, and their labels."""
    parts = (
        interpolate(part.to(DEVICE).float(), (SIDE, SIDE), mode="bilinear", antialias=True)
        for part in images.pixels.split(256)
    )
    return torch.cat(list(parts)), images.labels


def _drawn(images: Images, draw: torch.Generator) -> Images:
    """The images in random order."""
    return images.select(torch.randperm(len(images), generator=draw))


def train(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    steps: int,
    rate: float = 1e-3,
    smoothed: float = 0.0,
) -> None:
    """Train by Adam on `loss_of`, in batches of 64, and leave the model in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    model.train()
    left: list[Tensor] = []
    for _ in range(steps):
        # Epochs are of whole batches: the last one may be of one row, of which batch norm has no variance.
        left = left or list(torch.randperm(len(labels))[: len(labels) // BATCH * BATCH].split(BATCH))
        rows = left.pop()
        optimizer.zero_grad()
        loss_of(model, inputs[rows].float(), labels[rows], smoothed).backward()
        optimizer.step()
    model.eval()


def loss_of(model: nn.Module, x: Tensor, labels: Tensor, smoothed: float) -> Tensor:
    """The cross-entropy of a batch.

    Where labels are smoothed, rows are mixed as well, each with the one before, in one share for a batch.
    """
    if not smoothed:
        return cross_entropy(model(x), labels)
    share = float(torch.rand(()))
    logits = model(share * x + (1 - share) * x.roll(1, 0))
    y = one_hot(labels, logits.shape[1]).float()
    return cross_entropy(logits, share * y + (1 - share) * y.roll(1, 0), label_smoothing=smoothed)
