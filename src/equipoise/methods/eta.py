"""ETA: minimise the entropy of the answers that are reliable and new."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import StateError
from equipoise.functional import at_least_single, nats
from equipoise.methods._gradient import Objective
from equipoise.methods.tent import TENT
from equipoise.network.optimizer import OptimizerName
from equipoise.network.outcome import SourceView, known
from equipoise.options import number
from equipoise.registry import register

_INERTIA = 0.9  # of the moving average of probabilities, the authors'


@register
class ETA(TENT):
    """Efficient test-time adaptation: TENT on selected, weighted samples (Niu et al., ICML 2022).

    With H the entropy in nats and E₀ = margin · ln C, a sample is kept if H < E₀ (reliable) and if the cosine
    of its probabilities p with the moving average m of those kept before is below epsilon (new);

        L = mean over the kept of exp(E₀ − H) · H, the weight taken as a constant,
        m ← .9 m + .1 mean over the kept of p, starting with the mean over the reliable.

    One forward and, if any sample is kept, one backward a batch. With none kept there is no step.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        margin: E₀ as a multiple of ln C.
        epsilon: the largest cosine of a new sample; the authors use .05 for ImageNet, .4 for CIFAR.
        optimizer: "sgd" (the authors) or "adam".
        learning_rate: by default 2.5e-4 for "sgd" (the authors, on ImageNet) and 1e-3 for "adam".
        shared: `momentum`, `steps`, `parameters`, `norm_momentum`, `window` as in TENT, and `tempering`,
            `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

    Deviations: those of TENT, and a reset forgets the moving average, which the authors' code keeps.
    """

    name = "eta"
    arriving: ClassVar[tuple[str, ...]] = ("samples.*", "average")

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        margin: float = 0.4,
        epsilon: float = 0.05,
        optimizer: OptimizerName = "sgd",
        **shared: Any,
    ) -> None:
        super().__init__(model, source, optimizer=optimizer, **shared)
        self.margin = number("margin", margin, low=0)
        self.epsilon = number("epsilon", epsilon, low=0)
        self.resolve(margin=self.margin, epsilon=self.epsilon)

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse a window of another size, and an average of another number of classes."""
        super().check_kept(kept)
        average = kept.get("average")
        if average is not None and (average.ndim != 1 or self._classes not in (None, len(average))):
            raise StateError(
                f"expected an average of {self._classes} classes, got one of {tuple(average.shape)}"
            )

    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        """The weighted entropy of the samples kept."""
        entropies, probabilities = nats(logits), at_least_single(logits.detach()).softmax(1)
        limit = self.margin * math.log(logits.shape[1])
        # Zeros stand for no average yet, where only the device knows whether there is one.
        average = self.kept.get("average", torch.zeros_like(probabilities[0])).to(probabilities)
        fresh = ~average.any()
        similar = cosine_similarity(average.unsqueeze(0), probabilities).abs()
        kept = (entropies.detach() < limit) & ((similar < self.epsilon) | fresh)
        count = kept.sum()
        reason = f"none of {len(logits)} samples is reliable and new"
        if known(count > 0) is False:
            return Objective(entropies.mean(), 0, reason)
        share = kept.to(entropies.dtype) / count.clamp(min=1)
        mean = (share.unsqueeze(1) * probabilities).sum(0)
        moved = torch.where(fresh, mean, torch.lerp(mean, average, _INERTIA))
        self.kept["average"] = torch.where(count > 0, moved, average)
        weight = (limit - entropies.detach()).exp()
        # A sample that is left out must not reach the loss: its share of 0 times an infinite weight is NaN.
        each = torch.where(kept, weight * entropies, 0.0)
        return Objective((share * each).sum(), count, reason)
