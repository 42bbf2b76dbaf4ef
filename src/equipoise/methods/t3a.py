"""T3A: adjust the classifier's prototypes to the features of the stream."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import SUPPORTS, Answer, Context, Counts, Memory, Method, Update
from equipoise.methods._supports import check_supports, current_supports, export_supports, join_batch, scores
from equipoise.network.head import WatchedHead, check_head
from equipoise.network.student import Student
from equipoise.network.verdict import Check
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
    arrives = (f"{SUPPORTS}*", "direct")

    supports: int | None = option(None, low=1, whole=True)
    head: str | None = None

    def step(self, context: Context) -> Update:
        """Let the batch join the supports, then score it."""
        logits, head = self._forward(context)
        supports, good = join_batch(current_supports(context.memory, head, self.supports), head, logits)
        direct = torch.full((), head.is_output, device=logits.device)
        memory = {**supports, "direct": context.memory.get("direct", direct)}
        some = (Check(good.any(), "non-finite logits", on_failure="skip"),)
        answer = scores(supports, head, logits)
        return Update(answer, memory, good.sum(), checks=some, source_logits=logits)

    def answer(self, context: Context) -> Answer:
        """Score a batch by the supports as they are."""
        logits, head = self._forward(context)
        supports = current_supports(context.memory, head, self.supports)
        return Answer(scores(supports, head, logits), source_logits=logits)

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """The network with the prototypes as its head."""
        return export_supports(student, memory, self.head or student.head, self.supports)

    def _forward(self, context: Context) -> tuple[Tensor, WatchedHead]:
        with context.student.watched(self.head or context.student.head, required=True) as head:
            return context.student.frozen(context.batch), head

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse a head that is not the name of a linear layer."""
        if self.head is not None:
            check_head(student.model, self.head)

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse supports of another number or head."""
        check_supports(memory, student.model, self.head or student.head, self.supports)
