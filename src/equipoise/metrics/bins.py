"""Sums over bins of confidence, and the calibration errors that follow from them alone.

The sums of two streams add up to the sums of the joined stream, so what is computed from them is the
same however a stream is cut into batches.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class BinSums(NamedTuple):
    """Per bin: number of samples, Σ confidence, Σ correct and Σ (correct - confidence)²."""

    size: Tensor
    confidence: Tensor
    correct: Tensor
    squared_gap: Tensor


class ReliabilityBins:
    """The points of a reliability diagram, one entry a bin.

    Attributes:
        lower: Lower edge of each bin, itself outside the bin (but 0 is in the first).
        upper: Upper edge of each bin, itself inside the bin.
        count: Number of samples in each bin, int64.
        confidence: Mean confidence in each bin, NaN where it is empty.
        accuracy: Share of right answers in each bin, NaN where it is empty.

    >>> import torch
    >>> from equipoise.metrics import reliability_bins
    >>> record = reliability_bins(probs=torch.tensor([[0.75, 0.25]]), target=torch.tensor([0]), bins=2)
    >>> record.count
    tensor([0, 1])
    """

    # Not a dataclass: torchmetrics rebuilds those and would squeeze the tensors of a record with one bin. A
    # plain object it hands through untouched.
    def __init__(
        self, *, lower: Tensor, upper: Tensor, count: Tensor, confidence: Tensor, accuracy: Tensor
    ) -> None:
        self.lower = lower
        self.upper = upper
        self.count = count
        self.confidence = confidence
        self.accuracy = accuracy

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


def widest_dtype(device: torch.device) -> torch.dtype:
    """The dtype to add up in: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def equal_width_cell(confidence: Tensor, cells: int, rounding: torch.dtype) -> Tensor:
    """The index of the cell (i/cells, (i+1)/cells] each confidence lies in; 0 lies in the first.

    The edges are rounded as the confidences were: 0.2 in bfloat16 is above 1/5 and yet on that edge.
    """
    inner_edges = torch.arange(1, cells, dtype=confidence.dtype, device=confidence.device) / cells
    return torch.bucketize(confidence.contiguous(), inner_edges.to(rounding).to(confidence.dtype))


def sum_table(confidence: Tensor, correct: Tensor, cell: Tensor, cells: int) -> Tensor:
    """The sums of each cell as a (cells, 4) table whose columns are the fields of `BinSums`."""
    wide = widest_dtype(confidence.device)
    confidence, correct = confidence.to(wide), correct.to(wide)
    rows = torch.stack(
        [torch.ones_like(confidence), confidence, correct, (correct - confidence).square()], dim=1
    )
    return rows.new_zeros(cells, rows.shape[1]).index_add_(0, cell, rows)


def columns(table: Tensor) -> BinSums:
    """The named columns of a table that `sum_table` made."""
    return BinSums(*table.unbind(dim=1))


def expected_error(sums: BinSums) -> Tensor:
    """Σ_b (n_b/N) |acc_b - conf_b|; NaN without samples."""
    return (sums.correct - sums.confidence).abs().sum() / sums.size.sum()


def maximum_error(sums: BinSums) -> Tensor:
    """max_b |acc_b - conf_b| over the bins that hold samples; NaN without samples."""
    occupied = sums.size > 0
    if not occupied.any():
        return sums.size.new_full((), torch.nan)
    return ((sums.correct - sums.confidence).abs() / sums.size)[occupied].amax()


def equal_mass_error(groups: BinSums, bins: int) -> Tensor:
    """Σ_b |Δcorrect_b - Δconf_b| / N over equal-mass bins of groups in ascending confidence.

    A group on an edge is shared between its two bins in proportion, so the order of samples that are
    equally confident does not matter.
    """
    occupied = groups.size > 0
    total = groups.size.sum()
    if not occupied.any():
        return total.new_full((), torch.nan)
    mass = _cumulative(groups.size[occupied])
    gap = _cumulative((groups.correct - groups.confidence)[occupied])
    steps = torch.arange(bins + 1, dtype=mass.dtype, device=mass.device)
    return _interpolated(steps * total / bins, mass, gap).diff().abs().sum() / total


def classwise_gaps(probs: Tensor, target: Tensor, cell: Tensor, bins: int) -> Tensor:
    """Σ (1[y = k] - p_k) of each class k and bin of p_k, shape (C, bins)."""
    classes = probs.shape[1]
    cell = cell + torch.arange(classes, device=probs.device) * bins
    gap = -probs.to(widest_dtype(probs.device))
    gap = gap.scatter_add(1, target[:, None], torch.ones_like(gap[:, :1]))
    sums = gap.new_zeros(classes * bins).index_add_(0, cell.flatten(), gap.flatten())
    return sums.reshape(classes, bins)


def classwise_error(gaps: Tensor, samples: Tensor) -> Tensor:
    """The mean over classes of Σ_b |gap_kb| / N; NaN without samples."""
    return gaps.abs().sum(dim=1).mean() / samples


def reliability(sums: BinSums, dtype: torch.dtype) -> ReliabilityBins:
    """The reliability record of equal-width bins, its means in the given dtype."""
    edges = torch.arange(len(sums.size) + 1, dtype=dtype, device=sums.size.device) / len(sums.size)
    return ReliabilityBins(
        lower=edges[:-1],
        upper=edges[1:],
        count=sums.size.long(),
        confidence=(sums.confidence / sums.size).to(dtype),
        accuracy=(sums.correct / sums.size).to(dtype),
    )


def _cumulative(values: Tensor) -> Tensor:
    return torch.cat([values.new_zeros(1), values.cumsum(dim=0)])


def _interpolated(at: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    right = torch.searchsorted(knots, at).clamp(1, len(knots) - 1)
    left = right - 1
    weight = (at - knots[left]) / (knots[right] - knots[left])
    return torch.lerp(heights[left], heights[right], weight)
