"""ETA: minimise the entropy of the answers that are reliable and new."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context, Shapes
from equipoise.core.verdict import Check
from equipoise.errors import StateError
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import OBJECTIVES, Objective, kept_rows, mean_over, objective
from equipoise.options import choice, option
from equipoise.registry import register

_AVERAGE = "average"
_INERTIA = 0.9  # of the moving average of probabilities, the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Eta(WindowedMethod):
    """Efficient test-time adaptation: TENT on selected, weighted samples (Niu et al., ICML 2022).

    With H the entropy in nats and E₀ = margin · ln C, a sample is kept if H < E₀ (reliable) and if the cosine
    of its probabilities p with the moving average m of those kept before is below epsilon (new);

        L = mean over the kept of exp(E₀ − H) · H, the weight taken as a constant,
        m ← .9 m + .1 mean over the kept of p, starting with the mean over the reliable.

    One forward and, if any sample is kept, one backward a batch. With none kept there is no step.

    Args:
        margin: E₀ as a multiple of ln C.
        epsilon: the largest cosine of a new sample; by default 1.26 / √C, at least .05 (`default_epsilon`).
        objective: what is minimised and weighted: "entropy", H, or "come" (`objectives.opinion_entropy`);
            the samples are selected and their weights computed by H in any case.
        learning_rate: by default 2.5e-4 for "sgd" (the authors, on ImageNet) and 1e-3 for "adam".

    Deviations: those of TENT, and a reset forgets the moving average, which the authors' code keeps.
    """

    name = "eta"
    arrives: ClassVar[Shapes] = {**WindowedMethod.arrives, _AVERAGE: ("classes",)}

    margin: float = option(0.4, low=0)
    epsilon: float | None = option(None, low=0)
    objective: Objective = choice("entropy", OBJECTIVES)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The weighted entropy of the samples kept."""
        entropies, probabilities = nats(logits.detach()), at_least_single(logits.detach()).softmax(1)
        limit = self.margin * math.log(logits.shape[1])
        # Zeros: no average yet.
        average = context.memory.get(_AVERAGE, torch.zeros_like(probabilities[0])).to(probabilities)
        if len(average) != logits.shape[1]:
            raise StateError(f"expected an average of {logits.shape[1]} classes, got {len(average)}")
        first = ~average.any()
        similar = cosine_similarity(average.unsqueeze(0), probabilities).abs()
        epsilon = default_epsilon(logits.shape[1]) if self.epsilon is None else self.epsilon
        kept = (entropies < limit) & ((similar < epsilon) | first)
        count = kept.sum()
        mean = kept_rows(kept, probabilities).sum(0) / count.clamp(min=1)
        moved = torch.where(first, mean, torch.lerp(mean, average, _INERTIA))
        each = objective(self.objective, kept_rows(kept, logits))
        loss = mean_over(kept, (limit - entropies).exp() * each)
        some = Check(count > 0, f"none of {len(logits)} samples is reliable and new", on_failure="skip")
        return Loss(loss, count, {_AVERAGE: torch.where(count > 0, moved, average)}, (some,))


def default_epsilon(classes: int) -> float:
    """1.26 / √C, at least .05: the authors' .4 for 10 classes and .05 for 1000.

    The cosine of a sure answer with an even average of C classes is 1 / √C.
    """
    return max(0.05, 1.26 / math.sqrt(classes))
