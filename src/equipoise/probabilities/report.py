"""What is estimated of a chunk: its accuracy, and the metrics of its classes at that accuracy."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.scalars import NINETY
from equipoise.probabilities.classes import ByClass, by_class
from equipoise.probabilities.tally import Calibration, Tally, offset_for


@dataclass(frozen=True)
class Report:
    """What is estimated of a chunk without its labels, with 90 % intervals.

    Attributes:
        samples: rows with numbers; rows of NaN are not judged.
        accuracy: the share of right rows. `inside` says whether classes and confidences are no further from
            the held-out ones than `accuracy.NEAR_HELD_OUT`. Further away the interval is wide, and right if
            the change is no larger than natural ones are.
        precision: of each class, the share of the rows naming it where it is right; NaN if no row does.
        recall: of each class, the share of its rows that name it.
        f1: of each class, the harmonic mean of both.
        macro_f1: the mean of F1 over the classes.
        roc_auc: the area under the ROC curve; None for more than two classes.
        drift: whether the probabilities differ from the held-out ones by more than chance. A change of what
            is right, while the probabilities stay as they were (concept drift), is not in them: only labels
            show it.
        ids: the numbers of the chunk's rows, for labels that come later.
    """

    samples: int
    accuracy: Estimate
    precision: tuple[Estimate, ...]
    recall: tuple[Estimate, ...]
    f1: tuple[Estimate, ...]
    macro_f1: Estimate
    roc_auc: Estimate | None
    drift: bool
    ids: range

    def __str__(self) -> str:
        """The accuracy and what it rests on, in a line."""
        drift = "; the probabilities have changed" if self.drift else ""
        return f"{self.samples} rows, accuracy {self.accuracy}{drift}"


def report_of(counts: Tally, calibration: Calibration, accuracy: Estimate, drift: bool, ids: range) -> Report:
    """The report of a chunk with this accuracy.

    The metrics of the classes are those at the accuracy, and their intervals reach from those at its lower
    end to those at its upper, and further by what the sampling of a class's rows makes them vary.
    """
    middle, low, high = (
        by_class(counts, calibration, offset_for(counts, calibration, each))
        for each in (accuracy.value, accuracy.low, accuracy.high)
    )

    def each(metric: Callable[[ByClass], Tensor], rows: Tensor) -> tuple[Estimate, ...]:
        """A metric of all classes, with the rows that it is a share of."""
        ends = zip(*(metric(one).tolist() for one in (middle, low, high)), rows.tolist(), strict=True)
        return tuple(_around(value, a, b, rows=n, inside=accuracy.inside) for value, a, b, n in ends)

    precision = each(lambda one: one.precision, middle.named)
    recall = each(lambda one: one.recall, middle.present)
    f1 = each(lambda one: one.f1, (middle.named + middle.present) / 2)
    macro, *macro_ends = (float(one.f1.nanmean()) for one in (middle, low, high))
    area, *area_ends = (one.roc_auc for one in (middle, low, high))
    smaller = float(middle.present.min())
    return Report(
        counts.rows,
        accuracy,
        precision,
        recall,
        f1,
        _around(macro, *macro_ends, rows=counts.rows, inside=accuracy.inside),
        None if math.isnan(area) else _around(area, *area_ends, rows=smaller, inside=accuracy.inside),
        drift,
        ids,
    )


def _around(value: float, *ends: float, rows: float, inside: bool) -> Estimate:
    """An estimate with its ends, wider by what a share of so many rows varies."""
    if math.isnan(value):
        return Estimate(value, value, value, inside)
    sampled = NINETY**2 * value * (1 - value) / max(rows, 1.0)
    low = value - math.sqrt((value - min(value, *ends)) ** 2 + sampled)
    high = value + math.sqrt((max(value, *ends) - value) ** 2 + sampled)
    return Estimate(value, max(0.0, low), min(1.0, high), inside)
