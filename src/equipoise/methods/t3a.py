"""T3A: adjust the classifier's prototypes to the features of the stream."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import ModelError, StateError
from equipoise.functional import at_least_single
from equipoise.methods._supports import fits, head_shape, head_supports, join, prototypes, told
from equipoise.network.batch import Batch
from equipoise.network.head import check_head, find_head, head_features, watched, with_head
from equipoise.network.outcome import Check, Outcome, SourceView
from equipoise.options import integer
from equipoise.registry import register


@register
class T3A(Adapter):
    """Test-time classifier adjustment (Iwasawa and Matsuo, NeurIPS 2021): prototypes in place of the head.

    A support is a feature with a class and an entropy, both from the source model's logits for it. The first
    supports are the rows of the head's weight W, with the logits W Wᵀ + b; then each sample's feature f, with
    its logits W f + b. With S_c the supports of class c, all of them or the `supports` of lowest entropy,

        answer_c = f · v_c / ‖v_c‖,   v_c = Σ_{s ∈ S_c} s / ‖s‖,

    f as it is, without bias. A batch joins the supports before it is scored. A class without supports scores
    0. One forward a batch, which tempering shares; no gradients, and the network stays the source's.

    Args:
        model: a classifier with a linear head that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        supports: how many to keep for each class; None keeps all, as one running sum for each class.
        head: the name of the linear head, for a model whose output is not the output of an nn.Linear itself.
        shared: `tempering`, `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

    Deviations: None is the paper's M = ∞; the authors' code, for −1, drops the support of highest entropy of
    every class at every batch. Samples with non-finite logits do not become supports.
    """

    name = "t3a"
    moves_statistics = False
    arriving = ("supports.*", "direct")

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        supports: int | None = None,
        head: str | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(model, source, **shared)
        self.supports = None if supports is None else integer("supports", supports, low=1)
        self.head = head
        if head is not None:
            check_head(self.student, head)
        self._direct: bool | None = None  # whether the head's output is the model's; known after a forward
        self.resolve(supports=self.supports)

    @property
    def hooked(self) -> bool:
        """To see what the head gets."""
        return True

    def ask_source(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The source model's logits and the features of its head, from one forward."""
        with watched(self.student, self.head) as calls:
            logits = self.steady_logits(batch)
        if self.head is None:
            self.head = find_head(calls, logits)
            self.resolve(head=self.head)
        features = head_features(calls, self.head, logits)
        self._direct = calls[self.head].gave(logits)
        return logits, features

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Let the batch join the supports, then score it."""
        if source is None or source.features is None:
            mine, own = self.ask_source(batch)
            logits, features = self.everyones(mine), self.everyones(own, "features")
        else:
            logits, features = source.logits, source.features
        good = logits.isfinite().all(1) & features.isfinite().all(1)
        direct = torch.full((), bool(self._direct), device=logits.device)
        self.kept.update(
            self._joined(self._current(), features, good), direct=self.kept.get("direct", direct)
        )
        some = Check(good.any(), "non-finite logits", undoes=False)
        scores = self._scores(self.own(features), logits)
        return Outcome(scores, used=good.sum(), checks=(some,))

    def answer(self, batch: Batch, source: SourceView | None) -> Tensor:
        """Score a batch by the supports as they are."""
        logits, features = self._look(batch, source)
        return self._scores(features, logits)

    def detached_model(self) -> nn.Module:
        """The network with the prototypes as its head."""
        direct = self.kept.get("direct", self._direct)
        if self.head is None or direct is None:
            raise StateError("t3a looks at the head in a forward: answer a batch before detach()")
        if not bool(direct):
            raise ModelError(
                f"the model goes on after its head {self.head!r}, and t3a's answers do not: such a model "
                "cannot be detached"
            )
        weight = prototypes(self._current()).to(self._linear().weight.dtype)
        return with_head(self.student, self.head, weight)

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse supports of another number."""
        if not kept:
            return
        if "direct" not in kept or not fits(kept, self.supports):
            raise StateError(f"the state's supports are not those of supports={self.supports}")
        if self.head is not None and head_shape(kept) != self._linear().weight.shape:
            raise StateError("the state's supports are those of another head")

    def _look(self, batch: Batch, source: SourceView | None) -> tuple[Tensor, Tensor]:
        if source is None or source.features is None:
            return self.ask_source(batch)
        return source.logits, source.features

    def _current(self) -> Mapping[str, Tensor]:
        """The supports as they are; before the first batch, the rows of the head's weight."""
        if self.kept:
            self.check_kept(self.kept)
            return self.kept
        return head_supports(self._linear(), self.supports)

    def _joined(self, supports: Mapping[str, Tensor], features: Tensor, good: Tensor) -> dict[str, Tensor]:
        """The supports after good features have joined, under what the head itself says of them."""
        features = at_least_single(features)
        with torch.no_grad():
            return join(supports, features, *told(self._linear(), features), good)

    def _scores(self, features: Tensor, logits: Tensor) -> Tensor:
        """The scores in the dtype that the model answers in."""
        return (at_least_single(features) @ prototypes(self._current()).T).to(logits.dtype)

    def _linear(self) -> nn.Linear:
        head = self.student.get_submodule(self.head or "")
        if not isinstance(head, nn.Linear):
            raise TypeError(f"expected an nn.Linear, got {type(head).__name__}")
        return head
