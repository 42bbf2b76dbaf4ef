"""Accuracy, calibration and sharpness of a stream of labelled answers, in one pass over each batch."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.metrics.base import TargetMetric
from equipoise.metrics.bins import (
    BinSums,
    columns,
    equal_width_cell,
    expected_error,
    sum_table,
)
from equipoise.metrics.functional import (
    sample_brier_score,
    sample_entropy,
    sample_negative_log_likelihood,
)
from equipoise.metrics.inputs import Scores, check_bins


class SummaryValues(NamedTuple):
    """Values of the metrics of these names."""

    accuracy: Tensor
    expected_calibration_error: Tensor
    negative_log_likelihood: Tensor
    brier_score: Tensor
    entropy: Tensor


class Summary(TargetMetric):
    """Accuracy, ECE, NLL, Brier score and entropy of a stream at once.

    The same numbers as `Accuracy`, `ExpectedCalibrationError`, `NegativeLogLikelihood`, `BrierScore` and
    `Entropy` give, for a third of their time: a batch is checked and its probabilities are made once.

    >>> metric = Summary()
    >>> metric.update(logits=torch.tensor([[0.0, 0.0], [1.0, 1.0]]), target=torch.tensor([0, 1]))
    >>> float(metric.compute().entropy)
    1.0
    """

    def __init__(self, *, bins: int = 15, **kwargs: object) -> None:
        self.bins = check_bins(bins)
        # A row for each bin, and one for the sums that need none.
        super().__init__("summary_sums", (bins + 1, len(BinSums._fields)), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        known = replace(scores, values=scores.probs, are_logits=False)  # so that they are made once
        confidence = known.confidence
        cell = equal_width_cell(confidence, self.bins, scores.rounding)
        table = sum_table(confidence, scores.correct(target), cell, self.bins)
        each = (
            sample_negative_log_likelihood(scores, target),
            sample_brier_score(known, target),
            sample_entropy(known),
        )
        totals = [values.to(table.dtype).sum() for values in each]
        return torch.cat([table, torch.stack([*totals, table.new_zeros(())])[None]])

    def compute(self) -> SummaryValues:
        """The values so far."""
        table = columns(self.sums[:-1])
        nll, brier, entropy, _ = self.sums[-1]
        samples = table.size.sum()
        return SummaryValues(
            table.correct.sum() / samples,
            expected_error(table),
            nll / samples,
            brier / samples,
            entropy / samples,
        )
