"""No adaptation: the source model as it is."""

from torch import nn

from equipoise.adapter import Adapter
from equipoise.batch import Batch
from equipoise.outcome import Outcome, SourceView
from equipoise.registry import register
from equipoise.source import SourceStatistics


@register
class Source(Adapter):
    """The source model in eval mode with its own statistics: the baseline of every comparison.

    One forward a batch; nothing is learned or stored.
    """

    name = "source"

    def __init__(self, model: nn.Module, source: SourceStatistics | None = None) -> None:
        super().__init__(model, source)

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Answer as the source model does."""
        return Outcome(self.steady_logits(batch), loss=None, used=0, reason="no adaptation", failed=False)
