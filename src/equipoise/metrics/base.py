"""What all metrics of a stream share: one float64 tensor of sums, added up over batches and processes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from equipoise.errors import OptionError
from equipoise.metrics.inputs import Scores, check_scores, check_target


class StreamMetric(Metric):
    """A metric whose whole state is one tensor of sums.

    Batches may be on any device. On MPS, which has no float64, leave the metric on the CPU.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False

    def __init__(self, state_name: str, shape: tuple[int, ...], **kwargs: object) -> None:
        # The answer is quick to give again, and a cached one would outlive `load_state_dict`.
        kwargs.setdefault("compute_with_cache", False)
        super().__init__(**kwargs)
        # MetricCollection takes metrics for one and the same whose states have equal names and, after the
        # first batch, equal values: names are shared only by metrics that really add up the same thing.
        self.state_name = state_name
        self.add_state(state_name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    @property
    def sums(self) -> Tensor:
        """The sums so far."""
        sums: Tensor = getattr(self, self.state_name)
        return sums

    def forward(self, *args: object, **kwargs: object) -> object:
        """Add a batch and give the metric of that batch alone."""
        # torchmetrics clears the sums before it looks at the batch, so a batch that is refused inside it
        # would cost the whole stream: let a copy refuse it first.
        copy(self).update(*args, **kwargs)
        return super().forward(*args, **kwargs)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the sums of another metric of the same kind and settings, or of its `metric_state`."""
        sums: object = None
        updates = 1
        if isinstance(incoming_state, dict):
            sums = incoming_state.get(self.state_name)
        elif isinstance(incoming_state, type(self)):
            sums, updates = incoming_state.sums, incoming_state.update_count
        if not isinstance(sums, Tensor) or sums.shape != self.sums.shape:
            # Sums of other shapes may broadcast, and then the answer would be silently wrong.
            shape = f" with sums of shape {tuple(sums.shape)}" if isinstance(sums, Tensor) else ""
            raise OptionError(
                f"expected a {type(self).__name__} or its metric_state with sums of shape "
                f"{tuple(self.sums.shape)}, got a {type(incoming_state).__name__}{shape}"
            )
        self._add(sums)
        self._computed = None
        # Without this, a fresh metric that was only merged into warns that it was never updated.
        self._update_count += updates

    def _add(self, sums: Tensor) -> None:
        before = self.sums
        # First to the device and then to the dtype: MPS has no float64 to convert to. Not in place:
        # wrappers and collections hold on to the tensor that was here.
        setattr(self, self.state_name, before + sums.to(before.device).to(before.dtype))

    def _synced(self) -> AbstractContextManager[None]:
        return self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        # A model's .to(torch.bfloat16) reaches its metrics too, and a bfloat16 count stops at 256: follow
        # to the device, keep the dtype.
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)


class TargetMetric(StreamMetric):
    """A `StreamMetric` of predictions and labels."""

    def update(self, *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor) -> None:
        """Add a batch of predictions, shape (N, C), and labels, shape (N,)."""
        scores = check_scores(probs=probs, logits=logits)
        self._add(self._sums_of(scores, check_target(target, scores)))

    @abstractmethod
    def _sums_of(self, scores: Scores, target: Tensor) -> Tensor:
        """The sums of one checked batch."""
