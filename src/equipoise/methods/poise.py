"""Poise: statistics and prototypes follow the stream, without gradient steps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.calibration import novelty
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Answer, Context, Counts, Memory, Method, Update
from equipoise.methods._prototypes import PROTOTYPES, blend, check_prototypes, export_blended, learn
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.running_statistics import Return, settled_age
from equipoise.network.student import Student
from equipoise.network.verdict import Check
from equipoise.options import flag, option
from equipoise.registry import register

AGE, LIMITS = "age", "norm_limits"
NOVELTY, LIMIT, OF_SOURCE = "novelty", "novelty_limit", "source."


@register
@dataclass(frozen=True, kw_only=True)
class PoiseMethod(Method):
    """Follows the stream without gradient steps: the recommended method (docs/rehearsal.md).

    Normalisation statistics follow the stream, and start anew when it jumps (`running_statistics`); where the
    model ends in a linear layer, class prototypes help it (`_prototypes.blend`, the DEC paper's combination
    with T3A). On tables both do so only as far as rows are unlike source rows (`calibration.novelty`): rows
    of one class or group are no change of the world. One forward a batch. With a rehearsal the answers are as
    confident as they are estimated to be accurate, and the source model answers where adapting is estimated
    to be worse.

    Args:
        norm_momentum: how fast normalisation statistics follow: the share that 50 samples have in them.
        falls_back: whether the source model may answer, at a forward of it a batch; pays on sorted streams.
    """

    name = "poise"
    needs_source = True
    default_tempering = None
    default_source_copy = "resident"
    measuring = (
        "equipoise.rehearse(model, held_out_loader) (or, without labels and without tempering, "
        "equipoise.SourceStatistics.measure(model, source_loader))"
    )
    uses_prototypes = True
    heeds_novelty = True
    arrives = PROTOTYPES

    norm_momentum: float = option(0.1, low=0, high=1)
    falls_back: bool = flag(True)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The samples since the last jump, and a window of novelty, where either can be seen."""
        known, found = self.constants(student, source), dict[str, Tensor]()
        if LIMITS in known:
            found[AGE] = settled_age(student.device)
        if LIMIT in known:
            found[NOVELTY] = novelty.nothing_new(next(student.model.parameters(), torch.empty(0)))
        return found

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """Limits beyond which a batch is a jump, or its rows are new, as far as there are any.

        With the latter also the source's statistics, to which rows return that are not new.
        """
        device, found = student.device, dict[str, Tensor]()
        if source is not None and len(source.norm_limits):
            found[LIMITS] = source.norm_limits.to(device)
        if source is not None and "limit" in source.inputs:
            values = student.source_values(student.statistics)
            found[LIMIT] = source.inputs["limit"].to(device)
            found |= prefixed(OF_SOURCE, {name: value.to(device) for name, value in values.items()})
        return found

    def step(self, context: Context) -> Update:
        """Let statistics and prototypes follow the batch."""
        student, memory, known = context.student, dict(context.memory), context.constants
        momentum, limits, back = self.norm_momentum, known.get(LIMITS), None
        if NOVELTY in memory and context.novelty is not None:
            memory[NOVELTY] = novelty.novelty_after(memory[NOVELTY], context.novelty, known[LIMIT])
        if (new := _new(memory)) is not None:
            back = Return(part(known, OF_SOURCE), new)
        with torch.no_grad(), student.watched() as head:
            logits, age = student.on_running_statistics(
                context.batch, momentum, limits, memory.get(AGE), back
            )
            used = logits.isfinite().all(1).sum()
            memory |= learn(memory, head, logits) | ({} if age is None else {AGE: age})
            some = Check(used > 0, "non-finite logits", on_failure="skip")
            return Update(blend(memory, head, logits, new), memory, used, checks=(some,))

    def answer(self, context: Context) -> Answer:
        """The student's logits in eval mode, with the prototypes as they are."""
        with context.student.watched() as head:
            logits = context.student.frozen(context.batch)
            return Answer(blend(context.memory, head, logits, _new(context.memory)))

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """A copy of the student with the prototypes in its head."""
        return export_blended(student, memory, _new(memory))

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse prototypes of another number of classes."""
        check_prototypes(memory, student.classes)

    @property
    def compares(self) -> bool:
        """Whether the source model may answer."""
        return self.falls_back


def _new(memory: Memory) -> Tensor | None:
    """The share of the inputs that is new; None where that is not seen."""
    return novelty.share_of_new(memory[NOVELTY]) if NOVELTY in memory else None
