"""No adaptation: the source model as it is."""

from dataclasses import dataclass

from equipoise.core.method import Answer, Context, Method, Update
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Source(Method):
    """The source model in eval mode with its own statistics: the baseline of every comparison.

    One forward a batch, which tempering shares; nothing is learned or stored.
    """

    name = "source"
    moves_statistics = False

    def step(self, context: Context) -> Update:
        """Answer as the source model does."""
        logits = context.student.frozen(context.batch)
        return Update(logits, idle="no adaptation", source_logits=logits)

    def answer(self, context: Context) -> Answer:
        """Answer as the source model does."""
        logits = context.student.frozen(context.batch)
        return Answer(logits, source_logits=logits)
