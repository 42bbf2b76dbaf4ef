"""The metrics of a stream, as torchmetrics classes that keep sums of a fixed size and never a sample.

`update(probs=..., target=...)` or `update(logits=..., target=...)` adds a batch, `compute()` answers for
everything since `reset()`, and `Window(metric, size=k)` for the last k batches. Rows of NaN, as an adapter
answers samples that it set aside, are left out and counted: `skipped` is their number since `reset()`.
Keyword arguments beyond the metric's own go to `torchmetrics.Metric`.
"""

import math

import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.metrics.base import StreamMetric, TargetMetric
from equipoise.metrics.bins import (
    BinSums,
    ReliabilityBins,
    classwise_error,
    classwise_gaps,
    columns,
    equal_mass_error,
    equal_width_cell,
    expected_error,
    maximum_error,
    reliability,
    sum_table,
    widest_dtype,
)
from equipoise.metrics.functional import (
    sample_brier_score,
    sample_entropy,
    sample_negative_log_likelihood,
)
from equipoise.metrics.inputs import Scores, check_bins, check_scores
from equipoise.metrics.intervals import (
    bootstrap_expected_error,
    check_level,
    normal_interval,
    wilson_interval,
)
from equipoise.metrics.keywords import by_name

ADAPTIVE_GRID_CELLS = 4096


def _moments(values: Tensor) -> Tensor:
    """The number of values, their sum and the sum of their squares."""
    wide = values.to(widest_dtype(values.device))
    return torch.stack([wide.new_tensor(len(wide)), wide.sum(), wide.square().sum()])


class Accuracy(TargetMetric):
    """The share of right answers in a stream; see `accuracy`.

    >>> metric = Accuracy()
    >>> metric.update(probs=torch.tensor([[0.9, 0.1], [0.4, 0.6]]), target=torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def __init__(self, **kwargs: object) -> None:
        super().__init__("accuracy_moments", (3,), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(scores.correct(target))

    def compute(self) -> Tensor:
        """The accuracy so far."""
        samples, correct, _ = self.sums.unbind()
        return correct / samples

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Wilson's score interval of the accuracy."""
        check_level(level)
        with self._synced():
            samples, correct, _ = self.sums.unbind()
            return wilson_interval(samples, correct, level)


class _EqualWidthMetric(TargetMetric):
    """What the metrics over equal-width bins of confidence share, so that a collection updates it once."""

    def __init__(self, *, bins: int = 15, **kwargs: object) -> None:
        self.bins = check_bins(bins)
        super().__init__("equal_width_sums", (bins, len(BinSums._fields)), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        confidence = scores.confidence
        cell = equal_width_cell(confidence, self.bins, scores.rounding)
        return sum_table(confidence, scores.correct(target), cell, self.bins)


class ExpectedCalibrationError(_EqualWidthMetric):
    """The expected calibration error of a stream; see `expected_calibration_error`.

    It is taken from the bins of the whole stream. The mean of the errors of its batches is no estimate of
    it: in a small batch noise alone sets confidence and accuracy apart.

    >>> metric = ExpectedCalibrationError(bins=15)
    >>> metric.update(probs=torch.tensor([[0.75, 0.25]]), target=torch.tensor([0]))
    >>> metric.update(probs=torch.tensor([[0.75, 0.25]]), target=torch.tensor([1]))
    >>> metric.compute()
    tensor(0.2500, dtype=torch.float64)
    """

    def compute(self) -> Tensor:
        """The expected calibration error so far."""
        return expected_error(columns(self.sums))

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """An approximate interval of the error in these bins; see `bootstrap_expected_error`."""
        check_level(level)
        with self._synced():
            return bootstrap_expected_error(columns(self.sums), level)


class MaximumCalibrationError(_EqualWidthMetric):
    """The maximum calibration error of a stream; see `maximum_calibration_error`.

    It has no interval: the maximum over bins is ruled by the bin with the fewest samples.

    >>> metric = MaximumCalibrationError()
    >>> metric.update(probs=torch.tensor([[0.75, 0.25], [1.0, 0.0]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    def compute(self) -> Tensor:
        """The maximum calibration error so far."""
        return maximum_error(columns(self.sums))


class Reliability(_EqualWidthMetric):
    """The reliability diagram of a stream; see `reliability_bins`.

    >>> metric = Reliability(bins=2)
    >>> metric.update(probs=torch.tensor([[0.75, 0.25]]), target=torch.tensor([0]))
    >>> metric.compute().count
    tensor([0, 1])
    """

    def compute(self) -> ReliabilityBins:
        """The reliability record so far."""
        return reliability(columns(self.sums), self.sums.dtype)


class AdaptiveCalibrationError(TargetMetric):
    """The calibration error of a stream over bins of equal mass; see `adaptive_calibration_error`.

    Ranks need every sample; a fixed state cannot have them. Confidences in the same of 4096 equal cells
    therefore count as equally confident. It has no interval: its bins move with the sample.

    >>> metric = AdaptiveCalibrationError(bins=2)
    >>> metric.update(probs=torch.tensor([[0.75, 0.25], [1.0, 0.0]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.6250, dtype=torch.float64)
    """

    def __init__(self, *, bins: int = 15, **kwargs: object) -> None:
        self.bins = check_bins(bins)
        super().__init__("adaptive_grid_sums", (ADAPTIVE_GRID_CELLS, len(BinSums._fields)), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        confidence = scores.confidence
        # 4096 edges are exact in float32; rounded to a half type, many would coincide.
        cell = equal_width_cell(confidence, ADAPTIVE_GRID_CELLS, confidence.dtype)
        return sum_table(confidence, scores.correct(target), cell, ADAPTIVE_GRID_CELLS)

    def compute(self) -> Tensor:
        """The adaptive calibration error so far."""
        return equal_mass_error(columns(self.sums), self.bins)


class ClasswiseCalibrationError(TargetMetric):
    """The class-wise calibration error of a stream; see `classwise_calibration_error`.

    It has no interval: the classes share their samples, and the sums do not tell how they vary together.

    >>> metric = ClasswiseCalibrationError(num_classes=2)
    >>> metric.update(probs=torch.tensor([[0.75, 0.25], [0.75, 0.25]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.2500, dtype=torch.float64)
    """

    def __init__(self, *, num_classes: int, bins: int = 15, **kwargs: object) -> None:
        if not isinstance(num_classes, int) or isinstance(num_classes, bool) or num_classes < 1:
            raise OptionError(f"expected num_classes to be an int of at least 1, got {num_classes!r}")
        self.num_classes = num_classes
        self.bins = check_bins(bins)
        super().__init__("classwise_gaps_and_samples", (num_classes, bins + 1), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        samples, classes = scores.values.shape
        if classes != self.num_classes:
            raise OptionError(f"expected {self.num_classes} classes (num_classes), got {classes}")
        cell = equal_width_cell(scores.probs, self.bins, scores.rounding)
        gaps = classwise_gaps(scores.probs, target, cell, self.bins)
        # A column for the samples, though each class has the same: so the shape tells the settings.
        return torch.cat([gaps, gaps.new_full((classes, 1), samples)], dim=1)

    def compute(self) -> Tensor:
        """The class-wise calibration error so far."""
        return classwise_error(self.sums[:, :-1], self.sums[0, -1])


class _MeanMetric(StreamMetric):
    """What the means of per-sample values share."""

    largest_value = math.inf

    def compute(self) -> Tensor:
        """The mean so far."""
        samples, total, _ = self.sums.unbind()
        return total / samples

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The normal interval of the mean; NaN below two samples, infinite if a value was infinite."""
        check_level(level)
        with self._synced():
            samples, total, total_of_squares = self.sums.unbind()
            return normal_interval(samples, total, total_of_squares, level, self.largest_value)


class NegativeLogLikelihood(_MeanMetric, TargetMetric):
    """The mean negative log-likelihood of a stream in nats; see `negative_log_likelihood`.

    >>> metric = NegativeLogLikelihood()
    >>> metric.update(logits=torch.tensor([[0.0, 0.0]]), target=torch.tensor([1]))
    >>> metric.compute()
    tensor(0.6931, dtype=torch.float64)
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__("negative_log_likelihood_moments", (3,), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(sample_negative_log_likelihood(scores, target))


class BrierScore(_MeanMetric, TargetMetric):
    """The Brier score of a stream, from 0 to 2; see `brier_score`.

    >>> metric = BrierScore()
    >>> metric.update(probs=torch.tensor([[0.5, 0.5], [0.0, 1.0]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.2500, dtype=torch.float64)
    """

    largest_value = 2.0

    def __init__(self, **kwargs: object) -> None:
        super().__init__("brier_score_moments", (3,), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(sample_brier_score(scores, target))


class Entropy(_MeanMetric):
    """The mean entropy of the predictions of a stream in bits, without labels; see `entropy`.

    >>> metric = Entropy()
    >>> metric.update(probs=torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__("entropy_moments", (3,), **kwargs)

    @by_name
    def update(self, *, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        """Add a batch of predictions, shape (N, C); rows of NaN alone are counted in `skipped`, no more."""
        scores = check_scores(probs=probs, logits=logits)
        self._add_batch(_moments(sample_entropy(scores)), scores)
