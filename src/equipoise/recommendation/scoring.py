"""The scores of answers to a made-up stream, with intervals over its shifts."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.metrics.functional import expected_calibration_error
from equipoise.metrics.intervals import BOOTSTRAP_REPLICATES, BOOTSTRAP_SEED

CLEAR_LEVEL = 0.9
"""Of intervals, as of estimated accuracies: a difference whose interval is above 0 is clear."""


class Interval(NamedTuple):
    """A mean with its interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0


@dataclass(frozen=True, eq=False)
class ShiftSums:
    """Sums over the samples of each shift: counts, right answers and −ln p of the label, (shifts)."""

    counts: Tensor
    hits: Tensor
    losses: Tensor
    calibration_error: float

    @cached_property
    def accuracies(self) -> Tensor:
        """The accuracy of the stream, then of replicates with other draws of the shifts."""
        return self._replicates(self.hits)

    @cached_property
    def nlls(self) -> Tensor:
        """The negative log-likelihood likewise."""
        return self._replicates(self.losses)

    def _replicates(self, sums: Tensor) -> Tensor:
        draws = _draws(len(self.counts))
        return torch.cat([(sums.sum() / self.counts.sum())[None], (draws @ sums) / (draws @ self.counts)])


def _draws(shifts: int) -> Tensor:
    """The count of each shift in each replicate of the bootstrap; the same for all methods, so paired."""
    generator = torch.Generator().manual_seed(BOOTSTRAP_SEED)
    picked = torch.randint(shifts, (BOOTSTRAP_REPLICATES, shifts), generator=generator)
    counts = torch.zeros(BOOTSTRAP_REPLICATES, shifts, dtype=torch.float64)
    return counts.scatter_add(1, picked, torch.ones_like(picked, dtype=torch.float64))


def shift_sums(logits: Tensor, labels: Tensor, domains: Tensor, shifts: int) -> ShiftSums:
    """The sums of answers (T, C); samples of no class (label −1) are left out."""
    known = labels >= 0
    logits, labels, domains = logits[known], labels[known], domains[known]
    right = (logits.argmax(1) == labels).double()
    losses = cross_entropy(logits.double(), labels, reduction="none")

    def total(values: Tensor) -> Tensor:
        return torch.zeros(shifts, dtype=torch.float64).index_add(0, domains, values)

    error = float(expected_calibration_error(logits=logits, target=labels))
    return ShiftSums(total(torch.ones_like(right)), total(right), total(losses), error)


def interval(replicates: Tensor, level: float = CLEAR_LEVEL) -> Interval:
    """A value with the quantiles of its replicates, which come after it."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=replicates.dtype)
    low, high = replicates[1:].quantile(tails).tolist()
    return Interval(float(replicates[0]), low, high)
