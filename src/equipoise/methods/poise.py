"""Poise: statistics and prototypes follow the stream, without gradient steps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Answer, Context, Counts, Memory, Method, Update
from equipoise.methods._prototypes import PROTOTYPES, blend, check_prototypes, export_blended, learn
from equipoise.network.flags import Check
from equipoise.network.following import settled_age
from equipoise.network.student import Student
from equipoise.options import flag, option
from equipoise.registry import register

AGE, LIMITS = "age", "norm_limits"


@register
@dataclass(frozen=True, kw_only=True)
class PoiseMethod(Method):
    """Follows the stream without gradient steps: the recommended method (docs/rehearsal.md).

    Normalisation statistics follow the stream, and start anew when it jumps (`network.following`); where the
    model ends in a linear layer, class prototypes help it (`_prototypes.blend`, the DEC paper's combination
    with T3A). One forward a batch. With a rehearsal the answers are as confident as they are estimated to be
    accurate, and the source model answers where adapting is estimated to be worse.

    Args:
        norm_momentum: how fast normalisation statistics follow: the share that 50 samples have in them.
        falls_back: whether the source model may answer, at a forward of it a batch; pays on sorted streams.
    """

    name = "poise"
    needs_source = True
    default_tempering = None
    default_teacher = "resident"
    measuring = (
        "equipoise.rehearse(model, held_out_loader) (or, without labels and without tempering, "
        "equipoise.SourceStatistics.measure(model, source_loader))"
    )
    uses_prototypes = True
    arrives = PROTOTYPES

    norm_momentum: float = option(0.1, low=0, high=1)
    falls_back: bool = flag(True)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The age of the statistics, samples since the last jump, where jumps can be seen."""
        return {AGE: settled_age(student.device)} if self.constants(student, source) else {}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The limits of source batches, beyond which a batch is a jump; none without batch norm."""
        return {LIMITS: source.norm_limits.to(student.device)} if source and len(source.norm_limits) else {}

    def step(self, context: Context) -> Update:
        """Let statistics and prototypes follow the batch."""
        student, memory, limits = context.student, dict(context.memory), context.constants.get(LIMITS)
        momentum = self.norm_momentum
        with torch.no_grad(), student.watched() as head:
            logits, age = student.on_running_statistics(context.batch, momentum, limits, memory.get(AGE))
            used = logits.isfinite().all(1).sum()
            memory |= learn(memory, head, logits) | ({} if age is None else {AGE: age})
            some = Check(used > 0, "non-finite logits", undoes=False)
            return Update(blend(memory, head, logits), memory, used, checks=(some,))

    def answer(self, context: Context) -> Answer:
        """The student's logits in eval mode, with the prototypes as they are."""
        with context.student.watched() as head:
            return Answer(blend(context.memory, head, context.student.frozen(context.batch)))

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """A copy of the student with the prototypes in its head."""
        return export_blended(student, memory)

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse prototypes of another number of classes."""
        check_prototypes(memory, student.classes)

    @property
    def compares(self) -> bool:
        """Whether the source model may answer."""
        return self.falls_back
