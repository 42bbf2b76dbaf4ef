"""Accuracy and calibration of the samples whose labels have come."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.metrics.bins import columns, equal_width_cell, expected_error, sum_table
from equipoise.metrics.functional import sample_negative_log_likelihood
from equipoise.metrics.inputs import check_scores
from equipoise.metrics.intervals import bootstrap_expected_error, normal_interval, wilson_interval
from equipoise.production.monitor.samples import UNKNOWN, Rows

_BINS = 15

LEVEL = 0.9
"""The level of all intervals: that of the estimates."""


@dataclass(frozen=True)
class Truth:
    """Sums over labelled answers.

    Attributes:
        bins: those of `metrics.bins.sum_table`, (15, 4).
        surprise: the number, Σ and Σ² of −ln p_y, (3,).
        estimate: the number and Σ of the accuracies that were estimated without labels, (2,).
    """

    bins: Tensor
    surprise: Tensor
    estimate: Tensor

    def __add__(self, other: "Truth") -> "Truth":
        return Truth(self.bins + other.bins, self.surprise + other.surprise, self.estimate + other.estimate)

    @property
    def labels(self) -> int:
        """The number of labelled answers."""
        return int(self.surprise[0])


def nothing() -> Truth:
    """The sums without a label."""
    return Truth(*(torch.zeros(shape, dtype=torch.float64) for shape in ((_BINS, 4), (3,), (2,))))


def labelled(rows: Rows) -> Rows:
    """The rows that have an answer and a label."""
    found: Rows = rows[(rows["label"] != UNKNOWN) & (rows["predicted"] != UNKNOWN)]
    return found


def truth_of(rows: Rows) -> Truth:
    """The sums over those rows that have an answer and a label."""
    rows = labelled(rows) if len(rows) else rows
    if not len(rows):
        return nothing()
    target = torch.from_numpy(rows["label"].astype(np.int64))
    scores = check_scores(probs=None, logits=torch.from_numpy(rows["logits"].astype(np.float64)))
    confidence = scores.confidence
    cell = equal_width_cell(confidence, _BINS, scores.rounding)
    surprise = sample_negative_log_likelihood(scores, target)
    estimates = rows["accuracy"][~np.isnan(rows["accuracy"])]
    return Truth(
        sum_table(confidence, scores.correct(target), cell, _BINS),
        torch.stack([torch.ones_like(surprise), surprise, surprise.square()]).sum(1),
        torch.tensor([len(estimates), estimates.sum()], dtype=torch.float64),
    )


def truth_gauges(truth: Truth) -> dict[str, float]:
    """Accuracy, ECE and NLL with 90 % intervals, and the error of the estimates for the same samples.

    Wilson's interval for the accuracy, a bootstrap over the bins for the ECE, a normal one for the mean NLL;
    an interval that is not finite is left out. Nothing but `labels` before the first label.
    """
    found: dict[str, float] = {"labels": float(truth.labels)}
    if not truth.labels:
        return found
    sums, (count, total, squares) = columns(truth.bins), truth.surprise
    right = sums.correct.sum()
    named: dict[str, tuple[Any, tuple[Any, Any]]] = {
        "true_accuracy": (right / count, wilson_interval(count, right, LEVEL)),
        "ece": (expected_error(sums), bootstrap_expected_error(sums, LEVEL)),
        "nll": (total / count, normal_interval(count, total, squares, LEVEL, float("inf"))),
    }
    for name, (value, (low, high)) in named.items():
        numbers = {name: value, f"{name}_low": low, f"{name}_high": high}
        found |= {each: float(number) for each, number in numbers.items() if np.isfinite(float(number))}
    if truth.estimate[0]:
        found["estimate_error"] = float(truth.estimate[1] / truth.estimate[0]) - found["true_accuracy"]
    return found
