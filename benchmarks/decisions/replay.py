"""Recorded answers of models to streams, and a rehearsed `poise` that is replayed on them without a network.

What temperature, estimates, sets, decisions and labels are made of does not reach back into the network of
`poise`: its answers before tempering, those of the source model and the novelty of the inputs are all that
they take. So a stream is answered once (`record_streams`), and replayed as often as there is something to
try, on a CPU, by the same functions that an adapter calls.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import equipoise as eq
from equipoise.calibration.expected import Expectations
from equipoise.calibration.rehearsal import Estimate, countable
from equipoise.calibration.temper import TRUSTS, RehearsedTemperature, judged_accuracy
from equipoise.core.recent import RecentAnswers, label_scores
from equipoise.core.record import Record
from equipoise.core.verdict import JudgedRows, StepVerdict
from equipoise.files import read_tensors

PARTS = ("adapted", "plain", "novelty", "labels")

FORMAT = ("equipoise benchmark streams", 1)
"""The kind and the version of the files."""


@dataclass(frozen=True)
class Recorded:
    """The answers to a stream.

    Attributes:
        name: of the stream.
        kind: as `subjects.Stream` has it; "held out" for the data of the rehearsal, in the first place.
        adapted: logits of the adapting model before tempering, (N, C).
        plain: logits of the source model, (N, C).
        novelty: of the inputs, (N); none where it is not known.
        labels: (N).
        counts: how many of them arrive, in one pass after the other.
    """

    name: str
    kind: str
    adapted: Tensor
    plain: Tensor
    novelty: Tensor
    labels: Tensor
    counts: tuple[int, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {part: getattr(self, part).clone() for part in PARTS}


@dataclass(frozen=True)
class Records:
    """A model's recorded streams.

    Attributes:
        case: the name of the model.
        data: what it was trained on.
        source: its statistics with the rehearsal.
        held_out: the answers to the data of the rehearsal.
        streams: the others.
    """

    case: str
    data: str
    source: eq.SourceStatistics
    held_out: Recorded
    streams: tuple[Recorded, ...]


def files_of(folder: Path, case: str) -> tuple[Path, Path]:
    """The files of a case: source statistics, and streams."""
    stem = case.replace(",", "").replace(" ", "-")
    return folder / f"{stem}.source.safetensors", folder / f"{stem}.streams.safetensors"


def named_cases(folder: Path) -> list[str]:
    """The names of the models in a folder, those with the most answers first."""
    paths = sorted(folder.glob("*.streams.safetensors"), key=lambda path: -path.stat().st_size)
    return [read_tensors(path, *FORMAT)[1]["case"] for path in paths]


def read(folder: Path, case: str) -> Records:
    """The records of a model."""
    statistics, streams = files_of(folder, case)
    tensors, text = read_tensors(streams, *FORMAT)
    made = []
    for at, (name, kind, counts) in enumerate(json.loads(text["streams"])):
        parts = {part: tensors[f"{at}.{part}"] for part in PARTS}
        wide = {part: value.float() if part != "labels" else value for part, value in parts.items()}
        made.append(Recorded(name, kind, **wide, counts=tuple(counts)))
    held_out, *met = made
    return Records(case, text["data"], eq.SourceStatistics.load(statistics), held_out, tuple(met))


class Replay:
    """A rehearsed `poise` on recorded answers: what `eq.Poise` does with them, behind the network."""

    def __init__(self, records: Records) -> None:
        rehearsal = records.source.rehearsal_of("poise")
        self.rehearsed = RehearsedTemperature(rehearsal, compares=True)
        self.reset()

    def reset(self) -> None:
        """Begin again, at no shift."""
        self.observed = dict(self.rehearsed.initial())
        self.recent = RecentAnswers()

    def answer(self, stream: Recorded, span: slice) -> Tensor:
        """The calibrated logits of a batch of a stream, observed and remembered."""
        adapted, plain = stream.adapted[span], stream.plain[span]
        good = countable(adapted) & countable(plain)
        new = stream.novelty[span] if len(stream.novelty) else None
        found = self.rehearsed.answer(self.observed, adapted, plain, good, new)
        self.observed = dict(found.observed)
        record = Record(
            answer=found.logits,
            verdict=StepVerdict(JudgedRows(good, torch.zeros_like(good)), allowed=good.all()),
            rehearsal=self.rehearsed.rehearsal,
            observed=found.observed,
            source_logits=plain,
            judged=found.judged,
            adapted=adapted,
        )
        self.recent.take(record)
        return found.logits

    @property
    def by_source(self) -> bool:
        """Whether the source model answers."""
        return bool(self.observed[TRUSTS])

    @property
    def accuracy(self) -> Estimate:
        """The estimated accuracy of the answers."""
        judged, model = self.rehearsed.now(self.observed), int(self.by_source)
        return judged_accuracy(self.rehearsed.rehearsal, model, self.observed, judged)

    def expectations(self) -> Expectations:
        """What is expected of sets and decisions now."""
        return self.rehearsed.expectations(self.observed, self.accuracy)

    def label(self, targets: Tensor, ids: Tensor) -> None:
        """Labels of remembered answers."""
        told, before = self.recent.told(ids.tolist(), targets), self.observed
        self.observed = self.rehearsed.told(before, told.sums, told.new)
        cooler = self.rehearsed.level(before) / self.rehearsed.level(self.observed)
        taught, _ = self.expectations().learned(label_scores(told.given * cooler, told.target), told.back)
        self.observed = self.rehearsed.taught(self.observed, taught)
