"""The models and streams of the benchmark of decisions: tables, digits, SVHN, PACS and TinyImageNet-C."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.estimators import subjects as estimators
from benchmarks.rehearsal import families
from benchmarks.rehearsal.families import mild
from equipoise.research.data.images import Images

ROWS, MANY_CLASSES = 2000, 1000
"""The most rows of a stream of pictures, and of one of TinyImageNet-C."""

SEGMENT, SEGMENTS = 2500, 4
"""Rows of a part of a table's stream that gets labels, and how many parts there are."""

PART = 300
"""The rows of each part of a continual stream."""

SHIFTS = 16
"""The shifts that pictures are rehearsed with."""

EVERY = 3
"""Of the corruptions and of the simple shifts, one in so many is met."""

PICTURES = (
    *(f"digits {domain}" for domain in estimators.DOMAINS),
    *(f"pacs mobilenet_v1 {domain}" for domain in estimators.PICTURE_DOMAINS),
    "svhn gn",
    "svhn vit",
    "tin mobilenet_v1",
    "tin mobilenet_v1 doubtful",
)
"""The models of `families` that are measured."""


COUNTS = (0, 10, 50, 200)
"""How many rows of a stream get their labels; each is a pass of its own."""


@dataclass(frozen=True)
class Stream:
    """Rows in the order in which they come.

    Attributes:
        kind: "no drift", "simple" (dimmed, flat, blurred, noisy), "natural", "part" (of a natural one),
            "corrupted", "continual" (one shift after another), or "sorted", by class.
        inputs: of the rows.
        labels: of the rows.
        counts: how many of them get their labels, in one pass after the other.
    """

    kind: str
    inputs: Tensor
    labels: Tensor
    counts: tuple[int, ...] = COUNTS

    def select(self, rows: Tensor | slice) -> "Stream":
        """Some of the rows."""
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])

    def sorted(self) -> "Stream":
        """The rows by class."""
        return replace(self.select(self.labels.argsort(stable=True)), kind="sorted")


@dataclass(frozen=True)
class Subject:
    """A trained classifier with data that it was not trained on.

    Attributes:
        model: in eval mode.
        held_out: labelled source data, inputs and labels, to rehearse with.
        streams: by name.
        options: of its rehearsal.
    """

    model: nn.Module
    held_out: tuple[Tensor, Tensor]
    streams: Mapping[str, Stream]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """The name of a subject, and the function that makes it.

    Attributes:
        data: of the subject, "tables", "digits", "under-confident digits", "svhn", "pacs" or "tin".
        name: of the model.
        make: trains the model, or reads it.
    """

    data: str
    name: str
    make: Callable[[], Subject]


def cases(data: Path, models: Path, workers: int) -> Iterator[Case]:
    """All cases of a folder with tables/, digits/, pacs/, tiny-imagenet-200/ and weights/, as far as there.

    Models of `families` are left in `models`, and read from there.
    """
    for case in estimators.tables(data / "tables", (0,)):
        yield Case("tables", f"{case.data}, {case.network}", partial(_table, case))
    for case in estimators.doubtful_digits(data, (0,)):
        yield Case(case.kind, f"under-confident {case.data}", partial(_doubtful, case))
    for name in PICTURES:
        yield Case(name.split()[0], name, partial(_family, name, data, models, workers))


def _table(case: estimators.Case) -> Subject:
    made = case.make()
    (x, y), met = made.held_out, Stream("natural", *made.streams["in order"], counts=(0,))
    half, apart = len(y) // 2, (len(met.labels) - SEGMENT) // (SEGMENTS - 1)
    unseen = Stream("no drift", x[half:], y[half:])
    streams = {"unseen": unseen, "unseen, sorted": unseen.sorted(), "in order": met}
    streams |= {"in order, sorted": met.sorted()}
    for start in range(0, apart * SEGMENTS, apart):
        part = replace(met.select(slice(start, start + SEGMENT)), kind="part", counts=COUNTS)
        streams[f"in order, row {start} on"] = part
    return Subject(made.model, (x[:half], y[:half]), streams, {})


def _doubtful(case: estimators.Case) -> Subject:
    made = case.make()
    unseen, target = (
        Stream(kind, x.cpu(), y)
        for kind, (x, y) in (
            ("no drift", made.streams["unseen source images"]),
            ("natural", made.streams["random order"]),
        )
    )
    options = {"samples": made.samples, "shifts": made.shifts}
    return Subject(made.model, made.held_out, pictures(unseen, {"target": target}), options)


def _family(name: str, data: Path, models: Path, workers: int) -> Subject:
    made = families.load(name, data, models, workers, families.CORRUPTIONS[::EVERY])
    most = MANY_CLASSES if name.startswith("tin") else ROWS
    kind = "natural" if len(made.streams) == 1 else "corrupted"

    def stream(kind: str, images: Images) -> Stream:
        return Stream(kind, images.pixels[:most], images.labels[:most])

    targets = {name: stream(kind, images) for name, images in made.streams.items()}
    met = pictures(stream("no drift", made.unseen), targets)
    held_out = made.rehearsal.pixels.float().to(families.DEVICE), made.rehearsal.labels
    return Subject(made.model, held_out, met, {"samples": most, "shifts": SHIFTS})


def pictures(unseen: Stream, targets: Mapping[str, Stream]) -> dict[str, Stream]:
    """The streams of pictures: without a shift, with simple ones, the targets, and one after another."""
    changed = list(mild(unseen.inputs[:MANY_CLASSES]).items())[::EVERY]
    weak = {name: replace(unseen.select(slice(MANY_CLASSES)), kind="simple", inputs=x) for name, x in changed}
    streams = {"unseen": unseen, "unseen, sorted": unseen.sorted()} | weak | dict(targets)
    if len(targets) == 1:
        streams |= {f"{name}, sorted": stream.sorted() for name, stream in targets.items()}
    chosen = list(targets.values())[:: max(1, len(targets) // len(weak))]
    parts = [unseen, *(each for pair in zip(chosen, weak.values(), strict=False) for each in pair), unseen]
    own = [part.select(slice(-PART, None) if at % 2 else slice(PART)) for at, part in enumerate(parts)]
    x, y = torch.cat([part.inputs for part in own]), torch.cat([part.labels for part in own])
    return streams | {"one after another": Stream("continual", x, y)}
