"""No adaptation: the source model as it is."""

from typing import Any

from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.network.batch import Batch
from equipoise.network.outcome import Outcome, SourceView
from equipoise.registry import register


@register
class Source(Adapter):
    """The source model in eval mode with its own statistics: the baseline of every comparison.

    One forward a batch, which tempering shares; nothing is learned or stored.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        shared: `tempering`, `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.
    """

    name = "source"
    moves_statistics = False

    def __init__(self, model: nn.Module, source: SourceStatistics | None = None, **shared: Any) -> None:
        super().__init__(model, source, **shared)

    def answer(self, batch: Batch, source: SourceView | None) -> Tensor:
        """What the source model says."""
        return self.steady_logits(batch) if source is None else source.logits

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Answer as the source model does."""
        logits = self.steady_logits(batch) if source is None else self.own(source.logits)
        return Outcome(logits, reason="no adaptation")
