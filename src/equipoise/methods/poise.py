"""Poise: statistics and prototypes follow the stream, without gradient steps; then temper."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Tempering
from equipoise.errors import RehearsalWarning, StateError
from equipoise.methods._prototypes import TALLY, blend, blended_head, learn
from equipoise.methods._supports import SUMS
from equipoise.network.batch import Batch
from equipoise.network.following import SETTLED, Jumps
from equipoise.network.head import head_of, watched, with_head
from equipoise.network.normalisation import steady_statistics
from equipoise.network.outcome import Check, Outcome, SourceView, first_broken
from equipoise.network.pooled_batch_norm import pooled_following
from equipoise.network.teacher import Residence
from equipoise.options import number
from equipoise.registry import register

AGE = "age"
"""Samples since the last jump of the inputs."""


@register
class Poise(Adapter):
    """Follows the stream and says how sure it is: the recommended adapter, without gradient steps.

    Normalisation statistics follow the stream, whatever the size of batches, and start anew when it jumps
    (`following.following_statistics`); where the model ends in a linear layer, prototypes of the stream help
    it (`prototypes.blend`, the DEC paper's combination with T3A). With a rehearsal (`equipoise.rehearse`)
    the answers are tempered so that they are as confident as they are estimated to be accurate, and the
    source model answers where adapting is estimated to be worse (`calibration.rehearsed`). Two forwards a
    batch then, else one; no backward. docs/rehearsal.md has what was measured.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain, with a rehearsal of "poise".
        norm_momentum: how fast normalisation statistics follow: the share that 50 samples have in them.
        tempering: by default "rehearsed" where `source` holds a rehearsal of "poise", and else "none": every
            temperature without labels that was tried harms some model that is already honest.
        falls_back: whether the source model may answer, which costs a forward of it for each batch; sorted
            streams are where it pays.
        t_min: lower end of the range of t, for temperings from tau.
        t_max: its upper end.
        teacher: "resident" (a second copy) or "swapped" (one module that alternates weights; the source's
            wait in the host's memory).
        shared: `engine`, `precision`, `memory_format` and `distributed`, as in every method.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    >>> source = SourceStatistics.measure(model, [torch.randn(16, 3, 4)], progress=False)
    >>> adapter = Poise(model, source, tempering="none")
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    >>> adapter.last.used
    8
    """

    name = "poise"
    needs_source = True
    compares = True
    measuring = "equipoise.rehearse(model, held_out_loader)"
    arriving = (SUMS, TALLY)
    norm_limits: Tensor

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics,
        *,
        norm_momentum: float = 0.1,
        tempering: Tempering | None = None,
        falls_back: bool = True,
        t_min: float = 1.0,
        t_max: float = 3.0,
        teacher: Residence = "resident",
        **shared: Any,
    ) -> None:
        held = isinstance(source, SourceStatistics) and self.name in source.rehearsals
        chosen: Tempering = tempering or ("rehearsed" if held else "none")
        if tempering is None and not held and isinstance(source, SourceStatistics):
            warnings.warn(
                "poise has no rehearsal: its answers are not tempered, its accuracy is not estimated; both "
                "come with source = equipoise.rehearse(model, held_out_loader, source=source) on labelled "
                'source data that the model was not trained on; tempering="none" says that none is wanted',
                RehearsalWarning,
                stacklevel=_callers_level(),
            )
        self.asks_source = bool(falls_back) and chosen == "rehearsed"
        super().__init__(model, source, tempering=chosen, t_min=t_min, t_max=t_max, teacher=teacher, **shared)
        self.norm_momentum = number("norm_momentum", norm_momentum, low=0, high=1)
        self.register_buffer("norm_limits", source.norm_limits.to(self.device), persistent=False)
        self._head: str | None = None  # the name of the model's linear head; known after a forward
        self.resolve(norm_momentum=self.norm_momentum, tempering=chosen, falls_back=bool(falls_back))
        self._check_rehearsed()

    @property
    def hooked(self) -> bool:
        """To see what the head gets, and to let statistics follow."""
        return True

    def initial(self) -> dict[str, Tensor]:
        """The age of the statistics, where jumps can be seen."""
        return {AGE: torch.tensor(SETTLED, device=self.device)} if len(self.norm_limits) else {}

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Statistics and prototypes follow the batch."""
        jumps = Jumps(self.norm_limits, self.kept[AGE]) if len(self.norm_limits) else None
        following = pooled_following(self.student, self.norm_momentum, self.ranks, self.counts, jumps)
        with torch.no_grad(), following as followed:
            logits, head, features = self._look(batch)
            checks = (self.unspoilt(),)
            if broken := first_broken(checks):
                return Outcome(logits, reason=broken.otherwise, failed=True)
            everyones = self.everyones(logits)
            used = everyones.isfinite().all(1).sum()
            if head is not None:
                theirs = self.everyones(features, "features")
                self.kept.update(learn(self.kept, self._linear(head), theirs, everyones))
            if followed.age is not None:
                self.kept[AGE] = followed.age
            some = Check(used > 0, "non-finite logits", undoes=False)
            return Outcome(self._blended(logits, head, features), used=used, checks=(*checks, some))

    def answer(self, batch: Batch, source: SourceView | None) -> Tensor:
        """The student's logits in eval mode, with the prototypes as they are."""
        with torch.no_grad(), steady_statistics(self.student):
            return self._blended(*self._look(batch))

    def detached_model(self) -> nn.Module:
        """A copy of the student, with the prototypes in its head."""
        if SUMS not in self.kept:
            return super().detached_model()
        if self._head is None:
            raise StateError("poise looks at the head in a forward: answer a batch before detach()")
        return with_head(self.student, self._head, *blended_head(self.kept, self._linear(self._head)))

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse prototypes without their tally, or of another number of classes."""
        shapes = [tuple(kept[name].shape) for name in (SUMS, TALLY) if name in kept]
        fits = len(shapes) == 2 and len(shapes[0]) == 2 and shapes[1] == (3,)
        if shapes and not (fits and shapes[0][0] == self._classes):
            raise StateError("the state's prototypes are not those of this model's head")

    def _look(self, batch: Batch) -> tuple[Tensor, str | None, Tensor]:
        """The student's logits, the name of its linear head if it has one, and the features that it got."""
        with watched(self.student, None) as calls:
            logits = self.logits(batch)
        self._head = head_of(calls, logits)
        return logits, self._head, logits if self._head is None else calls[self._head].features

    def _blended(self, logits: Tensor, head: str | None, features: Tensor) -> Tensor:
        return logits if head is None or SUMS not in self.kept else blend(self.kept, logits, features)

    def _linear(self, name: str) -> nn.Linear:
        layer = self.student.get_submodule(name)
        if not isinstance(layer, nn.Linear):
            raise RuntimeError(f"expected a linear layer, got {type(layer).__name__}")
        return layer


def _callers_level() -> int:
    """The `stacklevel` of the first caller outside of this package, whom a warning is for."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("equipoise."):
        level, frame = level + 1, frame.f_back
    return level
