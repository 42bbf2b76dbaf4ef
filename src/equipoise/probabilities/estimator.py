"""The accuracy of a classifier of which only the probabilities are known."""

import json
import math
import os
import warnings
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.sets import SCORES, class_scores
from equipoise.errors import OptionError, StateError, callers_level
from equipoise.files import read_tensors, write_tensors
from equipoise.json_form import from_json, to_json
from equipoise.options import integer, number, one_of
from equipoise.probabilities.accuracy import HeldOut
from equipoise.probabilities.coverage import threshold_of
from equipoise.probabilities.late import (
    NO_CLASS,
    Awaiting,
    awaited,
    label_rows,
    row_numbers,
    with_labels,
)
from equipoise.probabilities.report import Report, report_of
from equipoise.probabilities.rows import Given, answers_of, in_kind, labels_of
from equipoise.probabilities.tally import (
    CELLS,
    Calibration,
    Tally,
    calibrate,
    moved_odds,
    named,
    offset_for,
    tally,
)

KEPT_NUMBERS, LEAST_KEPT = 2**18, 1000
"""The probabilities that are kept of held-out rows and of the last chunk, for the thresholds of sets, and the
least number of rows; drawn evenly from more."""

_KIND, _VERSION = "equipoise estimator", 1
_OF_CHUNK = ("right", "classes", "labels")


class Estimator:
    """Accuracy, errors by class, calibrated probabilities and sets, from probabilities alone.

    Made by `fit` from held-out probabilities with labels, or by `load`. Each `update` is a chunk of a stream.
    Labels of a chunk are not needed; those that come late count (`label`).

        estimator = eq.Estimator.fit(held_out, labels)
        for chunk in stream:
            report = estimator.update(chunk)
            report.accuracy  # 0.912 (0.894 to 0.927)

    The estimate is calibrated confidence, believed less the further the probabilities are from held-out ones
    (`equipoise.probabilities.accuracy`). What probabilities do not show, no such estimate can see: where the
    right answers change while the probabilities stay as they were (concept drift), it stays too, and only
    labels help.
    """

    def __init__(
        self, held_out: HeldOut, rows: Tensor, labels: Tensor, names: tuple[Hashable, ...] | None
    ) -> None:
        self._held_out, self._rows, self._labels, self._names = held_out, rows, labels, names
        self._chunks: list[Awaiting] = []
        self._last, self._recent, self._drift, self._offset = held_out.counts, rows, False, 0.0
        self._thresholds: dict[tuple[float, str], Tensor] = {}

    @classmethod
    def fit(cls, probabilities: Any, labels: Any, *, seed: int = 0) -> "Estimator":
        """Measure held-out rows that the model was not trained on.

        Args:
            probabilities: (N, C) of all classes, or (N) of the second of two: an array, a tensor, a table or
                a list.
            labels: the right classes (N): whole numbers from 0, or names of the columns of a table.
            seed: of the held-out rows that are kept for the thresholds of sets, where they are many.
        """
        seed = integer("seed", seed, low=0)
        answers = answers_of(probabilities)
        classes, names = answers.values.shape[1], None if answers.single else answers.names
        other = [name for name in names or () if not isinstance(name, (str, int))]
        if other:
            raise OptionError(
                f"expected columns named by text or whole numbers, which a file keeps, got {other[0]!r}: "
                "table.columns = table.columns.map(str)"
            )
        right = labels_of(labels, classes, names, len(answers.values))
        _tell_missing(answers)
        values, right = answers.usable, right if answers.known is None else right[answers.known]
        calibration, counts = calibrate(values, right)
        hits = int((named(values).classes == right).sum())
        held_out = HeldOut(calibration, counts, hits, float(values.amax(1).double().mean()))
        drawn = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))[: _kept(classes)]
        return cls(held_out, values[drawn].float(), right[drawn], names)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self._rows.shape[1]

    def update(self, probabilities: Any) -> Report:
        """The report of a chunk: the next rows of the stream."""
        answers = self._answers(probabilities)
        own = self._held_out
        _tell_missing(answers)
        counts, found = tally(answers.usable, own.calibration)
        distance = own.distance(counts)
        rows = slice(None) if answers.known is None else answers.known
        right = torch.zeros(len(answers.values))
        right[rows] = own.calibration.right[found.classes, found.steps].float()
        classes = torch.full((len(right),), NO_CLASS, dtype=torch.int32)
        classes[rows] = found.classes.int()
        first = self._chunks[-1].ids.stop if self._chunks else 0
        free = own.accuracy(counts, distance)
        chunk = Awaiting(first, free, right, classes, torch.full_like(classes, NO_CLASS))
        self._chunks = awaited([*self._chunks, chunk])
        self._last, self._drift = counts, distance.drift
        step = math.ceil(counts.rows / _kept(self.classes))
        self._recent = answers.usable[::step].to(torch.float32, copy=True).contiguous()  # own memory
        return self._reported()

    def label(self, labels: Any, ids: Any = None) -> int:
        """Take labels that have come, and return how many count: those of rows that are not forgotten.

        They correct the estimates of their chunk and of the next ones (`last`, `update`), the more the fewer
        chunks have come since; few of them change little (`equipoise.probabilities.late`). A label that
        comes again replaces the first. ForgottenRequestError for rows that are forgotten; then nothing has
        changed.

        Args:
            labels: the right classes, as in `fit`.
            ids: the number of the row of each label, of `Report.ids`; None for all rows of the last chunk.
        """
        numbers = row_numbers(self.last.ids if ids is None else ids)
        found = labels_of(labels, self.classes, self._names, len(numbers))
        self._chunks = label_rows(self._chunks, numbers, found)
        self._reported()
        return sum(int(chunk.labelled.sum()) for chunk in self._chunks)

    @property
    def last(self) -> Report:
        """The report of the last chunk, with the labels that have come since."""
        if not self._chunks:
            raise OptionError("expected a chunk first: estimator.update(probabilities)")
        return self._reported()

    def _reported(self) -> Report:
        """The report of the last chunk; calibrated probabilities follow its accuracy."""
        accuracy, calibration = with_labels(self._chunks), self._held_out.calibration
        self._thresholds = {}
        self._offset = offset_for(self._last, calibration, accuracy.value)
        return report_of(self._last, calibration, accuracy, self._drift, self._chunks[-1].ids)

    def probabilities(self, probabilities: Any) -> Any:
        """Calibrated probabilities, in the kind of those given; nothing is learned.

        The probability of the class named is that of held-out rows of the same confidence. Its odds are
        multiplied so that the mean over the last chunk is the accuracy estimated there. The other classes
        share the rest as they did. Rows of NaN stay NaN.
        """
        answers = self._answers(probabilities)
        found = torch.full_like(answers.values, math.nan)
        rows = slice(None) if answers.known is None else answers.known
        found[rows] = self._calibrated(answers.usable, self._offset)
        return in_kind(found[:, 1] if answers.single else found, probabilities)

    def sets(self, probabilities: Any, coverage: float = 0.9, score: str = "lac") -> Any:
        """The classes that are still possible, bool (N, C) in the kind of the probabilities given.

        Rows like held-out ones have the right class in that share of the sets (split conformal prediction).
        For rows like the last chunk the threshold is moved, so that their calibrated probabilities say the
        same coverage (`equipoise.probabilities.coverage.threshold_of`): where the accuracy is estimated
        lower, sets have more classes. A row of NaN has all classes.

        Args:
            probabilities: as in `update`; nothing is learned from them.
            coverage: the share of sets that are to have the right class.
            score: "lac", whose sets are the smallest and may be empty, "aps" or "raps" (`equipoise.sets`).
        """
        coverage = number("coverage", coverage, low=0, high=1)
        one_of("score", score, SCORES)
        if (coverage, score) not in self._thresholds:
            held_out, recent = self._calibrated(self._rows, 0.0), self._calibrated(self._recent, self._offset)
            found_at = threshold_of(held_out, self._labels, recent, coverage, score)
            self._thresholds[coverage, score] = found_at
        threshold = self._thresholds[coverage, score]
        answers = self._answers(probabilities)
        found = torch.ones(answers.values.shape, dtype=torch.bool)
        rows = slice(None) if answers.known is None else answers.known
        # In the precision of the rows that the threshold is from.
        scores = class_scores(self._calibrated(answers.usable.float(), self._offset), score)
        found[rows] = ~(scores > threshold)
        return in_kind(found, probabilities)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, atomically, with all that `update` and `label` have changed."""
        own = self._held_out
        tensors = {
            "right": own.calibration.right,
            "wrong": own.calibration.wrong,
            "steps": own.counts.steps,
            "others": own.counts.others,
            "rows": self._rows,
            "labels": self._labels,
        }
        if self._chunks:
            tensors |= {"last_steps": self._last.steps, "last_others": self._last.others}
            tensors["recent"] = self._recent
            for name in _OF_CHUNK:
                tensors[f"chunks.{name}"] = torch.cat([getattr(chunk, name) for chunk in self._chunks])
        text = {
            "held_out": [own.counts.rows, own.right, own.confidence],
            "last": [self._last.rows, self._drift, self._offset],
            "chunks": [[chunk.first, len(chunk.labels), to_json(chunk.free)] for chunk in self._chunks],
            "names": self._names,
        }
        write_tensors(path, _KIND, _VERSION, tensors, {"estimator": json.dumps(text)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Estimator":
        """Read what `save` wrote; StateError where the file is anything else."""
        tensors, text = read_tensors(path, _KIND, _VERSION)
        try:
            own = json.loads(text["estimator"])
            (rows, right, confidence), (last_rows, drift, offset) = own["held_out"], own["last"]
            calibration = Calibration(tensors["right"], tensors["wrong"])
            counts = Tally(int(rows), tensors["steps"], tensors["others"])
            names = None if own["names"] is None else tuple(own["names"])
            held_out = HeldOut(calibration, counts, int(right), float(confidence))
            made = cls(held_out, tensors["rows"], tensors["labels"], names)
            if own["chunks"]:
                made._last = Tally(int(last_rows), tensors["last_steps"], tensors["last_others"])
                made._recent = tensors["recent"]
                rows_of = [int(rows) for _, rows, _ in own["chunks"]]
                parts = zip(*(tensors[f"chunks.{name}"].split(rows_of) for name in _OF_CHUNK), strict=True)
                made._chunks = [
                    Awaiting(int(first), from_json(Estimate, free), *each)
                    for (first, _, free), each in zip(own["chunks"], parts, strict=True)
                ]
            made._drift, made._offset = bool(drift), float(offset)
            made._check_shapes()
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise StateError(f"{path}: not an estimator: {error!r}") from error
        return made

    def _check_shapes(self) -> None:
        """ValueError where tensors do not fit each other."""
        classes, calibration = self.classes, self._held_out.calibration
        every = [(calibration.right, calibration.wrong)]
        every += [(each.steps, each.others) for each in (self._held_out.counts, self._last)]
        fits = all(a.shape == (classes, CELLS) and b.shape == (classes, classes) for a, b in every)
        fits = fits and self._labels.shape == self._rows.shape[:1] and self._recent.shape[1:] == (classes,)
        if not fits:
            raise ValueError("tensors of other shapes than an estimator has")

    def _answers(self, probabilities: Any) -> Given:
        """Checked probabilities of the classes that the estimator was fitted on."""
        answers = answers_of(probabilities)
        if answers.values.shape[1] != self.classes:
            cure = f"; of one row give the shape (1, {self.classes})" if answers.single else ""
            raise OptionError(
                f"expected probabilities of the {self.classes} classes that the estimator was fitted on, got "
                f"{answers.values.shape[1]}{cure}"
            )
        if answers.single and self._names and answers.names not in (None, self._names[1:]):
            raise OptionError(
                f"expected the probability of the second class, the column {self._names[1]!r}, got the "
                f"column {(answers.names or ())[0]!r}: select table[[{self._names[1]!r}]]"
            )
        both = not answers.single and None not in (self._names, answers.names)
        if both and answers.names != self._names:
            raise OptionError(
                f"expected the columns that the estimator was fitted on, in their order: "
                f"{', '.join(map(str, self._names or ()))}; got {', '.join(map(str, answers.names or ()))}: "
                "select them by name, table[[...]]"
            )
        return answers

    def _calibrated(self, values: Tensor, offset: float) -> Tensor:
        """Calibrated probabilities (N, C)."""
        own = named(values)
        right = self._held_out.calibration.right[own.classes, own.steps]
        right = moved_odds(right, offset).to(values)[:, None]
        place = own.classes[:, None]
        others = values.scatter(1, place, 0.0)
        left = others.sum(1, keepdim=True)
        even = (1 - right) / max(1, self.classes - 1)
        shared = torch.where(left > 0, others / left.clamp(min=1e-30) * (1 - right), even)
        return shared.scatter(1, place, right)


def _tell_missing(answers: Given) -> None:
    """Warn of rows of NaN: they may be the harder ones."""
    if answers.known is not None:
        missing = int((~answers.known).sum())
        warnings.warn(
            f"{missing} of {len(answers.known)} rows are NaN and left out: the estimate is of the others",
            stacklevel=callers_level(),
        )


def _kept(classes: int) -> int:
    """The rows that are kept of that many classes."""
    return max(LEAST_KEPT, KEPT_NUMBERS // classes)
