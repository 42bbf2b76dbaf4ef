"""The metrics of a stream, as torchmetrics classes that keep sums of a fixed size and never a sample.

`update(probs=..., target=...)` or `update(logits=..., target=...)` adds a batch, `compute()` answers for
everything since `reset()`, and `Window(metric, size=k)` for the last k batches. Rows of NaN, as an adapter
answers samples that it set aside, are left out and counted: `skipped` is their number since `reset()`.
Keyword arguments beyond the metric's own go to `torchmetrics.Metric`.
"""

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from equipoise.errors import OptionError
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
from equipoise.metrics.inputs import Scores, by_name, check_scores, check_target, keywords_of
from equipoise.metrics.intervals import (
    bootstrap_expected_error,
    check_level,
    normal_interval,
    wilson_interval,
)
from equipoise.metrics.risk_coverage import (
    LOG_ODDS_CELLS,
    RiskCoverage,
    cell_confidence,
    log_odds_cell,
    risk_coverage_of,
)
from equipoise.options import integer

_SKIPPED = "skipped_rows"


class StreamMetric(Metric):
    """A metric whose whole state is one tensor of sums, and the number of rows that were skipped.

    Batches may be on any device. On MPS, which has no float64, leave the metric on the CPU.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False

    def __init__(self, state_name: str, shape: tuple[int, ...], **kwargs: object) -> None:
        # The answer is quick to give again, and a cached one would outlive `load_state_dict`.
        kwargs.setdefault("compute_with_cache", False)
        try:
            super().__init__(**kwargs)
        except ValueError as error:
            own = ", ".join(f"{name}=" for name in keywords_of(type(self).__init__)) or "none"
            raise OptionError(
                f"{type(self).__name__}: {error}; its own arguments: {own}, all others are torchmetrics'"
            ) from error
        # MetricCollection takes metrics for one and the same whose states have equal names and, after the
        # first batch, equal values: names are shared only by metrics that really add up the same thing.
        self.state_name = state_name
        self.add_state(state_name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state(_SKIPPED, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @property
    def sums(self) -> Tensor:
        """The sums so far."""
        sums: Tensor = getattr(self, self.state_name)
        return sums

    @property
    def skipped(self) -> int:
        """The number of rows left out so far: the NaN answers of an adapter to bad samples.

        Of all processes, as `compute` is.
        """
        with self._synced():
            return int(getattr(self, _SKIPPED))

    def forward(self, *args: object, **kwargs: object) -> object:
        """Add a batch and give the metric of that batch alone."""
        # torchmetrics clears the sums before it looks at the batch, so a batch that is refused inside it
        # would cost the whole stream: let a copy refuse it first.
        copy(self).update(*args, **kwargs)
        return super().forward(*args, **kwargs)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the sums of another metric of the same kind and settings, or of its `metric_state`."""
        state: dict[str, Any] = incoming_state if isinstance(incoming_state, dict) else {}
        updates = 1
        if isinstance(incoming_state, type(self)):
            state, updates = incoming_state.metric_state, incoming_state.update_count
        sums = state.get(self.state_name)
        if not isinstance(sums, Tensor) or sums.shape != self.sums.shape:
            # Sums of other shapes may broadcast, and then the answer would be silently wrong.
            shape = f" with sums of shape {tuple(sums.shape)}" if isinstance(sums, Tensor) else ""
            raise OptionError(
                f"expected a {type(self).__name__} or its metric_state with sums of shape "
                f"{tuple(self.sums.shape)}, got a {type(incoming_state).__name__}{shape}"
            )
        self._add(self.state_name, sums)
        self._add(_SKIPPED, state.get(_SKIPPED, 0))
        self._computed = None
        # Without this, a fresh metric that was only merged into warns that it was never updated.
        self._update_count += updates

    def _add_batch(self, sums: Tensor, scores: Scores) -> None:
        self._add(self.state_name, sums)
        if scores.skipped:  # rare, and an addition on a GPU is a kernel more
            self._add(_SKIPPED, scores.skipped)

    def _add(self, state: str, more: Tensor | float) -> None:
        before: Tensor = getattr(self, state)
        if isinstance(more, Tensor):
            # First to the device and then to the dtype: MPS has no float64 to convert to.
            more = more.to(before.device).to(before.dtype)
        # Not in place: wrappers and collections hold on to the tensor that was here.
        setattr(self, state, before + more)

    def _synced(self) -> AbstractContextManager[None]:
        return self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        # A model's .to(torch.bfloat16) reaches its metrics too, and a bfloat16 count stops at 256: follow
        # to the device, keep the dtype.
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)


class TargetMetric(StreamMetric):
    """A `StreamMetric` of predictions and labels."""

    @by_name
    def update(self, *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor) -> None:
        """Add a batch of predictions, shape (N, C), and labels, shape (N,).

        Rows of NaN alone are left out with their labels, and counted in `skipped`.
        """
        scores = check_scores(probs=probs, logits=logits)
        self._add_batch(self._sums_of(scores, check_target(target, scores)), scores)

    @abstractmethod
    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        """The sums of one checked batch."""


ADAPTIVE_GRID_CELLS = 4096


def _moments(values: Tensor) -> Tensor:
    """The number of values, their sum and the sum of their squares."""
    wide = values.to(widest_dtype(values.device))
    return torch.stack([wide.new_tensor(len(wide)), wide.sum(), wide.square().sum()])


class _MeanMetric(StreamMetric):
    """The base of means of per-sample values, with their sums and intervals."""

    moments: ClassVar[str]
    """The name of the state."""

    largest_value = math.inf

    def __init__(self, **kwargs: object) -> None:
        super().__init__(self.moments, (3,), **kwargs)

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


class Accuracy(_MeanMetric, TargetMetric):
    """The share of right answers in a stream; see `accuracy`.

    >>> metric = Accuracy()
    >>> metric.update(probs=torch.tensor([[0.9, 0.1], [0.4, 0.6]]), target=torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    """

    moments = "accuracy_moments"
    higher_is_better = True

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(scores.correct(target))

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Wilson's score interval of the accuracy."""
        check_level(level)
        with self._synced():
            samples, correct, _ = self.sums.unbind()
            return wilson_interval(samples, correct, level)


class _EqualWidthMetric(TargetMetric):
    """The base of metrics over equal-width bins of confidence; a collection updates their one state once."""

    def __init__(self, *, bins: int = 15, **kwargs: object) -> None:
        self.bins = integer("bins", bins, low=1)
        super().__init__("equal_width_sums", (self.bins, len(BinSums._fields)), **kwargs)

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
        self.bins = integer("bins", bins, low=1)
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
        self.num_classes = integer("num_classes", num_classes, low=1)
        self.bins = integer("bins", bins, low=1)
        super().__init__("classwise_gaps_and_samples", (self.num_classes, self.bins + 1), **kwargs)

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


class AreaUnderRiskCoverage(TargetMetric):
    """The area under the risk-coverage curve of a stream; see `area_under_risk_coverage`.

    Exact ranks need every sample; a fixed state cannot have them. Samples whose log-odds ln(p / (1 - p)) lie
    in one of 8192 cells, each 1/128 wide, therefore count as equally confident: the risk of a sample is off
    by at most the share of its cell among the answered, and the area of 20,000 samples of four classes was
    off by less than 0.001. It has no interval: the risks at all thresholds share their samples.

    >>> metric = AreaUnderRiskCoverage()
    >>> metric.update(probs=torch.tensor([[0.9, 0.1], [0.6, 0.4]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.2500, dtype=torch.float64)
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__("log_odds_sums", (LOG_ODDS_CELLS, 2), **kwargs)

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        confidence = scores.confidence
        groups = columns(
            sum_table(confidence, scores.correct(target), log_odds_cell(confidence), LOG_ODDS_CELLS)
        )
        return torch.stack([groups.size, groups.correct], dim=1)

    def compute(self) -> Tensor:
        """The area so far."""
        return self._curve().area

    def curve(self) -> RiskCoverage:
        """The risk-coverage curve so far, each threshold the least confidence of a cell with samples."""
        with self._synced():
            return self._curve()

    def _curve(self) -> RiskCoverage:
        size, correct = self.sums.unbind(1)
        return risk_coverage_of(cell_confidence(size), size, correct)


class NegativeLogLikelihood(_MeanMetric, TargetMetric):
    """The mean negative log-likelihood of a stream in nats; see `negative_log_likelihood`.

    >>> metric = NegativeLogLikelihood()
    >>> metric.update(logits=torch.tensor([[0.0, 0.0]]), target=torch.tensor([1]))
    >>> metric.compute()
    tensor(0.6931, dtype=torch.float64)
    """

    moments = "negative_log_likelihood_moments"

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(sample_negative_log_likelihood(scores, target))


class BrierScore(_MeanMetric, TargetMetric):
    """The Brier score of a stream, from 0 to 2; see `brier_score`.

    >>> metric = BrierScore()
    >>> metric.update(probs=torch.tensor([[0.5, 0.5], [0.0, 1.0]]), target=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.2500, dtype=torch.float64)
    """

    moments = "brier_score_moments"
    largest_value = 2.0

    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        return _moments(sample_brier_score(scores, target))


class Entropy(_MeanMetric):
    """The mean entropy of the predictions of a stream in bits, without labels; see `entropy`.

    >>> metric = Entropy()
    >>> metric.update(probs=torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    """

    moments = "entropy_moments"

    @by_name
    def update(self, *, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        """Add a batch of predictions, shape (N, C); rows of NaN alone are counted in `skipped`, no more."""
        scores = check_scores(probs=probs, logits=logits)
        self._add_batch(_moments(sample_entropy(scores)), scores)


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
        self.bins = integer("bins", bins, low=1)
        # A row for each bin, and one for the sums that need none.
        super().__init__("summary_sums", (self.bins + 1, len(BinSums._fields)), **kwargs)

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


class Window:
    """A stream metric over its last `size` updates, whose sums are kept one by one.

    `torchmetrics.wrappers.Running` computes the same; this one also has the metric's interval.
    The metric is copied, and what it has seen so far is left out.

    >>> import torch
    >>> from equipoise.metrics import Accuracy
    >>> recent = Window(Accuracy(), size=2)
    >>> for label in (1, 0, 0):
    ...     recent.update(probs=torch.tensor([[0.9, 0.1]]), target=torch.tensor([label]))
    >>> recent.compute()
    tensor(1., dtype=torch.float64)
    """

    def __init__(self, metric: StreamMetric, size: int) -> None:
        if not isinstance(metric, StreamMetric):
            raise OptionError(
                f"expected metric to be one of equipoise's stream metrics, got {type(metric).__name__}"
            )
        self._metric = deepcopy(metric)
        # Kept one by one and added when asked: taking an old batch off a running sum would leave its
        # rounding behind, and of an infinite one NaN.
        self._recent: deque[dict[str, Any]] = deque(maxlen=integer("size", size, low=1))

    def update(self, *nameless: Tensor, **batch: Tensor | None) -> None:
        """Add a batch, as the metric's own `update` takes it, and forget the oldest beyond the window."""
        self._metric.reset()
        self._metric.update(*nameless, **batch)  # which refuses arguments without names
        self._recent.append(self._metric.metric_state)

    def compute(self) -> Any:
        """The metric of the last updates."""
        return self._filled().compute()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The metric's interval over the last updates; an `OptionError` where the metric has none."""
        if not hasattr(self._metric, "interval"):
            raise OptionError(f"expected a metric with an interval, got {type(self._metric).__name__}")
        low, high = self._filled().interval(level)
        return low, high

    @property
    def skipped(self) -> int:
        """The number of rows that were left out of the last updates: the NaN answers of an adapter."""
        return int(self._filled().skipped)

    def reset(self) -> None:
        """Forget all updates."""
        self._recent.clear()

    def _filled(self) -> Any:
        self._metric.reset()
        for state in self._recent:
            self._metric.merge_state(state)
        return self._metric
