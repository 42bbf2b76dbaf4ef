"""T3A: adjust the classifier's prototypes to the features of the stream."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import SUPPORTS, Answer, Context, Counts, Memory, Method, Shapes, Update
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import ModelError, StateError
from equipoise.methods.parts import linear_head as heads
from equipoise.network.head import check_head, linear_layer, with_head
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class T3a(Method):
    """Test-time classifier adjustment (Iwasawa and Matsuo, NeurIPS 2021): prototypes in place of the head.

    A support is a feature with a class and an entropy, both from the source model's logits for it. The first
    supports are the rows of the head's weight W, with the logits W Wᵀ + b; then each sample's feature f, with
    its logits W f + b. With S_c the supports of class c, all of them or the `supports` of lowest entropy,

        answer_c = f · v_c / ‖v_c‖,   v_c = Σ_{s ∈ S_c} s / ‖s‖,

    f as it is, without bias. A batch joins the supports before it is scored. A class without supports scores
    0. One forward a batch, which tempering shares; no gradients, and the network stays the source's.

    Args:
        supports: how many to keep for each class; None keeps all, as one running sum for each class.
        head: the name of the linear head, for a model whose output is not the output of an nn.Linear itself.

    Deviations: None is the paper's M = ∞; the authors' code, for −1, drops the support of highest entropy of
    every class at every batch. Samples with non-finite logits do not become supports.
    """

    name = "t3a"
    moves_statistics = False
    uses_prototypes = True
    arrives: ClassVar[Shapes] = {f"{SUPPORTS}*": (...,), "direct": ()}

    supports: int | None = option(None, low=1, whole=True)
    head: str | None = None

    def step(self, context: Context) -> Update:
        """Let the batch join the supports, then score it."""
        seen = heads.head_answers(context.student, context.batch, self.head)
        joined = heads.labels_and_entropies(seen.head, seen.features)
        supports = heads.join(self._supports(context.memory, seen.head), seen.features, *joined, seen.good)
        direct = torch.full((), seen.direct, device=seen.logits.device)
        memory = {**supports, "direct": context.memory.get("direct", direct)}
        some = Check(seen.good.any(), "non-finite logits", on_failure="skip")
        answer = _scores(supports, seen)
        return Update(answer, memory, seen.good.sum(), checks=(some,), source_logits=seen.logits)

    def answer(self, context: Context) -> Answer:
        """Score a batch by the supports as they are."""
        seen = heads.head_answers(context.student, context.batch, self.head)
        return Answer(_scores(self._supports(context.memory, seen.head), seen), source_logits=seen.logits)

    def _supports(self, memory: Memory, head: nn.Linear) -> Memory:
        """The supports in the memory; before the first batch, the rows of the head's weight."""
        if memory and _head_shape(memory) != head.weight.shape:
            raise StateError("the state's supports are those of another head")
        return memory or heads.head_supports(head, self.supports)

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """The network with the prototypes as its head."""
        head = self.head or student.head
        direct = bool(memory["direct"]) if "direct" in memory else student.head_is_output
        if head is None or direct is None:
            raise StateError("t3a finds the head in a forward: answer a batch before detach()")
        if not direct:
            raise ModelError(
                f"the model goes on after its head {head!r}, and t3a's answers do not: such a model "
                "cannot be detached"
            )
        layer = linear_layer(student.model, head)
        supports = memory or heads.head_supports(layer, self.supports)
        return with_head(student.model, head, heads.prototypes(supports).to(layer.weight.dtype))

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse a head that is not the name of a linear layer."""
        if self.head is not None:
            check_head(student.model, self.head)

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse supports of another number or head."""
        super().check_memory(student, memory, counts)
        if not memory:
            return
        shape, limit, name = _head_shape(memory), self.supports, self.head or student.head
        room = {heads.VECTORS: (*shape[:1], limit, *shape[1:]), heads.ENTROPIES: (*shape[:1], limit)}
        if limit is None:
            room = {heads.CLASS_SUMS: shape}
        fits = len(shape) == 2 and memory.keys() == {*room, "direct"}
        if not fits or any(memory[entry].shape != expected for entry, expected in room.items()):
            raise StateError(f"the state's supports are not those of supports={limit}")
        if name is not None and shape != linear_layer(student.model, name).weight.shape:
            raise StateError("the state's supports are those of another head")


def _head_shape(supports: Memory) -> tuple[int, ...]:
    """The (C, D) of the head that supports belong to."""
    tensor = supports.get(heads.CLASS_SUMS, supports.get(heads.VECTORS, torch.empty(0)))
    return (*tensor.shape[:1], *tensor.shape[-1:])


def _scores(supports: Memory, seen: heads.HeadAnswers) -> Tensor:
    """The scores of a batch by the prototypes, in the dtype that the model answers in."""
    return (seen.features @ heads.prototypes(supports).T).to(seen.logits.dtype)
