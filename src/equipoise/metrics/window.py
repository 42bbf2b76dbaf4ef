"""A metric over the last updates of a stream only."""

from collections import deque
from copy import deepcopy
from typing import Any

from torch import Tensor

from equipoise.errors import OptionError
from equipoise.metrics.base import StreamMetric


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
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"expected size to be an int of at least 1, got {size!r}")
        self._metric = deepcopy(metric)
        # Kept one by one and added when asked: taking an old batch off a running sum would leave its
        # rounding behind, and of an infinite one NaN.
        self._recent: deque[dict[str, Any]] = deque(maxlen=size)

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
