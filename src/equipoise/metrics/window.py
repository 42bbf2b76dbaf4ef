"""A metric over the last updates of a stream only."""

from collections import deque
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.metrics.base import StreamMetric


class Window:
    """A stream metric over its last `size` updates, one tensor of sums kept for each of them.

    `torchmetrics.wrappers.Running` computes the same; this one also has the metric's interval.
    The metric is copied, and what it has seen so far is left out.

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
        self._recent: deque[Tensor] = deque(maxlen=size)

    def update(self, **batch: Tensor | None) -> None:
        """Add a batch, as the metric's own `update` takes it, and forget the oldest beyond the window."""
        self._metric.reset()
        self._metric.update(**batch)
        self._recent.append(self._metric.sums)

    def compute(self) -> Any:
        """The metric of the last updates."""
        return self._filled().compute()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The metric's interval over the last updates; an `OptionError` where the metric has none."""
        if not hasattr(self._metric, "interval"):
            raise OptionError(f"expected a metric with an interval, got {type(self._metric).__name__}")
        low, high = self._filled().interval(level)
        return low, high

    def reset(self) -> None:
        """Forget all updates."""
        self._recent.clear()

    def _filled(self) -> Any:
        self._metric.reset()
        if self._recent:
            self._metric.merge_state({self._metric.state_name: torch.stack(list(self._recent)).sum(dim=0)})
        return self._metric
