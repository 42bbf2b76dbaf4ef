"""SAR: sharpness-aware entropy minimisation on reliable samples, with a reset when the answers collapse."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import OPTIMIZER, Loss, Targets
from equipoise.core.method import Context
from equipoise.core.optimizer import climbed
from equipoise.core.student import Student
from equipoise.core.verdict import Check, all_hold, host_knows
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import OBJECTIVES, Objective, kept_rows, mean_over, objective
from equipoise.network.named_tensors import copy_unless, part, prefixed
from equipoise.options import choice, option
from equipoise.registry import register

_INERTIA = 0.9  # of the moving average m, the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Sar(WindowedMethod):
    """Sharpness-aware and reliable entropy minimisation (Niu et al., ICLR 2023).

    With H the entropy in nats and E₀ = margin · ln C, by two forwards and two backwards a batch,

        S₁ = {H(θ) < E₀},   g = ∇ mean_{S₁} H(θ),   ε = rho · g / ‖g‖,
        S₂ = S₁ ∩ {H(θ + ε) < E₀},   θ ← optimiser step with ∇ mean_{S₂} H(θ + ε),
        m ← .9 m + .1 mean_{S₂} H(θ + ε), starting with that mean itself;

    if then m < reset_below · ln C / ln 1000, the answers have collapsed to few classes: weights, optimiser
    and m (not running statistics) go back to their start. The answer is the first forward's. No S₂, no step.

    Args:
        margin: E₀ as a multiple of ln C.
        rho: the length of the step uphill.
        reset_below: the average entropy of a collapse in nats, for 1000 classes; 0: no resets.
        objective: what is minimised: "entropy", H, or "come" (as for `tent`); S₁, S₂ and m are always of H.
        learning_rate: by default 2.5e-4 for "sgd" and 1e-3 for "adam". For batches of n samples the authors
            have 2.5e-4, or 2.5e-4 · n / 32 where n < 32; for ViT 1e-3 · n / 64; twice that where n = 1.

    Deviations: without S₂ the authors' code takes a step by the momentum alone; here weights stay. The rate
    does not follow the batch size: set it. After a reset the authors' code keeps m, and resets at every batch
    until m has climbed. Their threshold is .2 nats for any number of classes. They leave out layers by parts
    of their names. The second forward moves no running statistics.
    """

    name = "sar"

    margin: float = option(0.4, low=0)
    rho: float = option(0.05, low=0)
    reset_below: float = option(0.2, low=0)
    objective: Objective = choice("entropy", OBJECTIVES)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, and an average of 0: there is none yet."""
        like = at_least_single(next(iter(student.learned.values())).detach())
        return {**super().initial(student, source), "average": like.new_zeros(())}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source's weights, to go back to."""
        return {n: v.to(student.learned[n].device) for n, v in student.source_values(student.learned).items()}

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The objective of the reliable samples."""
        return self._over(nats(logits.detach()) < self.margin * math.log(logits.shape[1]), logits)

    def _over(self, kept: Tensor, logits: Tensor) -> Loss:
        some = Check(kept.any(), f"none of {len(kept)} samples is reliable", on_failure="skip")
        return Loss(
            mean_over(kept, objective(self.objective, kept_rows(kept, logits))), kept.sum(), checks=(some,)
        )

    def descend(
        self, logits: Tensor, loss: Loss, context: Context, checks: tuple[Check, ...]
    ) -> tuple[Loss, tuple[Check, ...]]:
        """Step by the gradient uphill, then reset the weights if the answers have collapsed."""
        student, memory, scale = context.student, context.memory, math.log(logits.shape[1])
        if host_knows(all_hold(checks)) is False:
            return loss, checks
        here = student.slope(loss.value)
        with climbed(student.learned, here.gradients, self.rho) as finite:
            again = student.on_batch_statistics(context.batch, momentum=0.0)
            entropies = nats(again.detach())
            kept = torch.maximum(entropies, nats(logits.detach())) < self.margin * scale
            sharp = self._over(kept, again)
            there = student.slope(sharp.value)
        checks = (*checks, *here.checks, *finite, *sharp.checks)
        state, allowed = part(memory, OPTIMIZER), context.allowed
        state, checks = student.descend(lambda: there, self.descent, state, *checks, allowed=allowed)
        taken, before, now = all_hold(checks), memory["average"], mean_over(kept, entropies)
        average = torch.where(before == 0, now, torch.lerp(now, before, _INERTIA))
        collapsed = taken & (average < self.reset_below * scale / math.log(1000))
        copy_unless(~collapsed, student.learned, context.constants)
        news = {**prefixed(OPTIMIZER, state), "average": torch.where(taken, average, before)}
        news = {name: torch.where(collapsed, 0, tensor) for name, tensor in news.items()}
        healthy = Check(~collapsed, "the answers collapsed: the source's weights are back", on_failure="skip")
        return sharp._replace(value=loss.value, memory=news), (*checks, healthy)
