"""Reports: the intervals of metrics of the classes, by the accuracy's and by sampling."""

import math

import pytest
import torch

from equipoise.calibration.rehearsal import Estimate
from equipoise.probabilities.classes import ByClass, by_class
from equipoise.probabilities.report import report_of
from equipoise.probabilities.tally import Calibration, Tally, calibrate, offset_for

ACCURACY = Estimate(0.7, 0.62, 0.76, True)


def counted(classes: int) -> tuple[Tally, Calibration]:
    draw = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(500, classes, generator=draw)).softmax(1)
    calibration, counts = calibrate(probs, torch.multinomial(probs, 1, generator=draw).squeeze(1))
    return counts, calibration


def at_ends(counts: Tally, calibration: Calibration) -> list[ByClass]:
    ends = (ACCURACY.value, ACCURACY.low, ACCURACY.high)
    return [by_class(counts, calibration, offset_for(counts, calibration, each)) for each in ends]


def interval(value: float, low: float, high: float, rows: float) -> tuple[float, float]:
    """From the metric at both ends of the accuracy, and 1.645 standard errors of a share of so many rows."""
    sampled = 1.645 * math.sqrt(value * (1 - value) / rows)
    return value - math.hypot(value - low, sampled), min(1.0, value + math.hypot(high - value, sampled))


@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_have_the_doubt_of_the_accuracy_and_of_their_rows(classes: int) -> None:
    counts, calibration = counted(classes)
    middle, low, high = at_ends(counts, calibration)
    report = report_of(counts, calibration, ACCURACY, drift=False, ids=range(500))
    for c in range(classes):
        named, present = float(middle.named[c]), float(middle.present[c])
        for found, of, rows in (
            (report.precision, "precision", named),
            (report.recall, "recall", present),
            (report.f1, "f1", (named + present) / 2),
        ):
            value, below, above = (float(getattr(one, of)[c]) for one in (middle, low, high))
            assert found[c].value == pytest.approx(value)
            assert (found[c].low, found[c].high) == pytest.approx(interval(value, below, above, rows))
            assert found[c].inside
    value, below, above = (float(one.f1.mean()) for one in (middle, low, high))
    assert report.macro_f1.value == pytest.approx(value)
    assert (report.macro_f1.low, report.macro_f1.high) == pytest.approx(interval(value, below, above, 500))


def test_two_classes_have_an_area_with_the_rows_of_the_rarer() -> None:
    counts, calibration = counted(2)
    middle, low, high = at_ends(counts, calibration)
    found = report_of(counts, calibration, ACCURACY, drift=False, ids=range(500)).roc_auc
    assert found is not None
    rows = float(middle.present.min())
    ends = interval(middle.roc_auc, low.roc_auc, high.roc_auc, rows)
    assert (found.low, found.high) == pytest.approx(ends)
    assert report_of(*counted(3), ACCURACY, drift=False, ids=range(500)).roc_auc is None


def test_a_report_says_its_accuracy_and_what_changed() -> None:
    report = report_of(*counted(3), ACCURACY, drift=True, ids=range(500))
    assert str(report) == "500 rows, accuracy 0.700 (0.620 to 0.760); the probabilities have changed"
