"""The base of all metrics of a stream: a float64 tensor of sums, added up over batches and processes."""

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
from equipoise.metrics.keywords import by_name, keywords_of

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
