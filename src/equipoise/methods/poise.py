"""Poise: statistics and prototypes follow the stream, without gradient steps."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.calibration import novelty
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Answer, Context, Counts, Memory, Method, Shapes, Update
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import StateError
from equipoise.functional import at_least_single, entropy
from equipoise.methods.parts.linear_head import CLASS_SUMS, head_supports, join, prototypes
from equipoise.network.head import FoundHead, linear_layer, with_head
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.running_statistics import Return, settled_age
from equipoise.options import flag, option
from equipoise.registry import register

SPREAD_TOTALS = "spread_totals"
"""Sums over all samples: the spread over the classes of the head's logits, of the prototypes', and 1."""

HALF_WEIGHT_SAMPLES = 100
"""The samples for each class at which prototypes have half of the weight that they can have."""
AGE, LIMITS = "age", "norm_limits"
NOVELTY, LIMIT, OF_SOURCE = "novelty", "novelty_limit", "source."


@register
@dataclass(frozen=True, kw_only=True)
class PoiseMethod(Method):
    """Follows the stream without gradient steps: the recommended method (docs/rehearsal.md).

    Normalisation statistics follow the stream, and start again when it jumps (`running_statistics`);
    where the model ends in a linear layer, class prototypes help it (`blend`, as in the DEC paper's mix with
    T3A). On tables both do so only as far as rows are unlike source rows (`calibration.novelty`): rows of one
    class or group are no change of the world. One forward a batch. With a rehearsal the answers are as
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
    arrives: ClassVar[Shapes] = {CLASS_SUMS: ("classes", None), SPREAD_TOTALS: (3,)}

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
        """Refuse prototypes of another number of classes, or without their totals."""
        super().check_memory(student, memory, counts)
        if (CLASS_SUMS in memory) != (SPREAD_TOTALS in memory):
            raise StateError("expected the state's prototypes with their totals, got one without the other")

    @property
    def compares(self) -> bool:
        """Whether the source model may answer."""
        return self.falls_back


def _new(memory: Memory) -> Tensor | None:
    """The share of the inputs that is new; None where that is not seen."""
    return novelty.share_of_new(memory[NOVELTY]) if NOVELTY in memory else None


def learn(memory: Memory, head: FoundHead, logits: Tensor) -> dict[str, Tensor]:
    """The prototypes after a batch: each feature joins the class of the head's logits; none without a head.

    Before the first batch the rows of the head's weight join, as in T3A (`linear_head.join`).
    """
    if head.layer is None or head.features is None:
        return {}
    features, logits = at_least_single(head.features.detach()), at_least_single(logits.detach())
    with torch.autocast(features.device.type, enabled=False):
        return _learned(memory, head.layer, features, logits)


def _learned(memory: Memory, head: nn.Linear, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
    good = features.isfinite().all(1) & logits.isfinite().all(1)
    features = torch.where(good.unsqueeze(1), features, 0.0)
    logits = torch.where(good.unsqueeze(1), logits, 0.0)
    if CLASS_SUMS in memory:
        if memory[CLASS_SUMS].shape != head.weight.shape:
            raise StateError("the state's prototypes are not those of this model's head")
        sums, tally = {CLASS_SUMS: memory[CLASS_SUMS]}, memory[SPREAD_TOTALS]
    else:
        sums = head_supports(head, None)
        tally = sums[CLASS_SUMS].new_zeros(3, dtype=torch.float64)
    sums = join(sums, features, logits.argmax(1), entropy(logits), good)
    theirs = features @ prototypes(sums).T
    spreads = [torch.where(good, scores.std(1), 0.0).double().sum() for scores in (logits, theirs)]
    return {**sums, SPREAD_TOTALS: tally + torch.stack([*spreads, good.sum().double()])}


def blend(memory: Memory, head: FoundHead, logits: Tensor, new: Tensor | None = None) -> Tensor:
    """The head's logits and the prototypes', the latter stretched to the same spread.

    z = (1 − w) · (W f + b) + w · rho · f · v with v_c the unit prototype of class c,
    w = ½ · N / (N + 100 C) for N samples and C classes, and rho = Σ std_c(W f + b) / Σ std_c(f · v), over all
    samples since the last reset. Without a linear head or prototypes, the logits are the model's. Where
    inputs have changed in part, w is multiplied by that share (`new`; None: 1).
    """
    if head.features is None or CLASS_SUMS not in memory:
        return logits
    share, stretched = _share(memory, new), _stretched(memory)
    wide = at_least_single(logits)
    theirs = (at_least_single(head.features) @ stretched.T).to(wide.dtype)  # autocast may have narrowed it
    return torch.lerp(wide, theirs, share.to(wide.dtype)).to(logits.dtype)


def export_blended(student: Student, memory: Memory, new: Tensor | None = None) -> nn.Module:
    """A copy of the network whose one linear head answers as `blend` does."""
    if CLASS_SUMS not in memory:
        return student.export()
    if student.head is None:
        raise StateError("poise finds the head in a forward: answer a batch before detach()")
    layer, share = linear_layer(student.model, student.head), _share(memory, new)
    weight = at_least_single(layer.weight.detach())
    weight = torch.lerp(weight, _stretched(memory), share.to(weight.dtype)).to(layer.weight.dtype)
    bias = None if layer.bias is None else layer.bias.detach() * (1 - share).to(layer.bias.dtype)
    return with_head(student.model, student.head, weight, bias)


def _share(memory: Memory, new: Tensor | None) -> Tensor:
    samples = memory[SPREAD_TOTALS][2]
    most = samples / (samples + HALF_WEIGHT_SAMPLES * len(memory[CLASS_SUMS])) / 2
    return most if new is None else most * new.to(most)


def _stretched(memory: Memory) -> Tensor:
    ours, theirs, _ = memory[SPREAD_TOTALS]
    return prototypes(memory) * torch.where(theirs > 0, ours / theirs, 0.0).to(memory[CLASS_SUMS].dtype)
