"""Estimates without an estimator, for tests of what is printed and drawn."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.calibration.rehearsal import Estimate
from equipoise.cli.estimate import Chunk, EstimatedChunk
from equipoise.probabilities.report import Report


def about(value: float, inside: bool = True) -> Estimate:
    """An estimate with an interval of .1 on both sides."""
    return Estimate(value, round(max(value - 0.1, 0), 6), round(min(value + 0.1, 1), 6), inside)


def report(
    first: Sequence[float],
    accuracy: float,
    *,
    classes: int = 2,
    f1: Sequence[float] | None = None,
    start: int = 0,
) -> Report:
    """A report of rows: drift below .5, outside below .1, and no precision of the last class."""
    by_class = tuple(map(about, f1 or [accuracy] * classes))
    return Report(
        samples=len(first),
        accuracy=about(accuracy, inside=accuracy > 0.1),
        precision=(*by_class[:-1], Estimate(math.nan, math.nan, math.nan, True)),
        recall=by_class,
        f1=by_class,
        macro_f1=about(accuracy),
        roc_auc=about(0.9) if len(by_class) == 2 else None,
        drift=accuracy < 0.5,
        ids=range(start, start + len(first)),
    )


class StandIn:
    """In the place of the class of estimators and of one: the mean probability of the first class is told.

    Args:
        told: takes the calls: ("fit" | "update" | "label", …).
    """

    def __init__(self, told: list[Any]) -> None:
        self.told, self.seen = told, 0
        self.rows, self.mean, self.classes = 0, 0.0, 2

    def fit(self, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> "StandIn":
        """Begin with no rows seen."""
        self.seen = 0
        self.told.append(("fit", probabilities, labels))
        return self

    def update(self, probabilities: NDArray[np.float64]) -> Report:
        """Report on rows."""
        self.told.append(("update", probabilities))
        first, classes = probabilities[:, 0], probabilities.shape[1]
        self.rows, self.mean, self.classes = len(first), float(first.mean()), classes
        self.seen += len(first)
        return report(first.tolist(), self.mean, classes=classes, start=self.seen - len(first))

    def label(self, labels: NDArray[np.int64], ids: NDArray[np.int64]) -> int:
        """Take labels of rows."""
        self.told.append(("label", labels, ids))
        return len(labels)

    @property
    def last(self) -> Report:
        """What was reported last, .03 lower."""
        return report([0.5] * self.rows, self.mean - 0.03, classes=self.classes, start=self.seen - self.rows)

    @staticmethod
    def estimated(made: Report) -> EstimatedChunk:
        """The only chunk of a stream."""
        return EstimatedChunk(Chunk("1 to 9", 1, 9, slice(0, 9)), made, 0.8, None)
