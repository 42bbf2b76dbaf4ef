"""Precision, recall, F1 and the area under the ROC curve that an accuracy goes with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.probabilities.tally import Calibration, Tally, directions, moved_odds


@dataclass(frozen=True)
class ByClass:
    """Metrics of the classes, (C), NaN where nothing is in their denominator.

    Attributes:
        precision: the share of the rows that name the class where it is right.
        recall: the share of its rows that name it.
        f1: the harmonic mean of both.
        named: the rows that name the class.
        present: the expected rows of the class.
        roc_auc: of two classes, the chance that a row of the second has a higher probability than one of the
            first; NaN for more.
    """

    precision: Tensor
    recall: Tensor
    f1: Tensor
    named: Tensor
    present: Tensor
    roc_auc: float


def by_class(counts: Tally, calibration: Calibration, offset: float) -> ByClass:
    """The metrics where the odds of the class named are e^offset of the calibrated ones.

    With q the moved probability that a row names the right class: the right ones of class c are Σ q over the
    rows that name c, the wrong ones Σ (1 − q), divided among the other classes as their probabilities are,
    times what the held-out labels say (`Calibration.wrong`).
    """
    right = moved_odds(calibration.right, offset)
    hits = (counts.steps * right).sum(1)
    named = counts.steps.sum(1)
    wrong = directions(counts.others * calibration.wrong) * (named - hits).unsqueeze(1)
    present = hits + wrong.sum(0)
    precision, recall, f1 = hits / named, hits / present, 2 * hits / (named + present)
    auc = _area(counts.steps, right) if len(named) == 2 else float("nan")
    return ByClass(precision, recall, f1, named, present, auc)


def _area(steps: Tensor, right: Tensor) -> float:
    """The area under the ROC curve of two classes: the chance that p₁ of a row of class 1 is the larger.

    Rows of one step are alike, and count half.
    """
    rows = torch.cat([steps[0].flip(0), steps[1]])  # by rising probability of the second class
    second = torch.cat([1 - right[0].flip(0), right[1]]) * rows
    first = rows - second
    below = first.cumsum(0) - first / 2
    return float((second * below).sum() / (second.sum() * first.sum()))
