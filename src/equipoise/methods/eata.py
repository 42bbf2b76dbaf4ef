"""EATA: ETA, held back where the source domain needs the weights as they were."""

from typing import Any

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import SourceError
from equipoise.methods._gradient import Objective
from equipoise.methods.eta import ETA
from equipoise.network.outcome import SourceView
from equipoise.options import number
from equipoise.registry import register


@register
class EATA(ETA):
    """Efficient anti-forgetting test-time adaptation (Niu et al., ICML 2022).

        L = L_ETA + fisher_alpha · Σ_j F_j (θ_j − θ⁰_j)²,

    with θ⁰ the source weights and F how much they matter there (`fisher.Fisher`), measured with
    `SourceStatistics.measure(model, source_loader, fisher=True)` and kept in the statistics' file.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain, with the Fisher diagonal.
        fisher_alpha: the weight of the penalty; the authors use 2000 for ImageNet, 1 for CIFAR.
        shared: `margin`, `epsilon`, `learning_rate`, `optimizer`, `momentum`, `steps`, `parameters`,
            `norm_momentum`, `window` as in ETA, and `tempering`, `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

    Deviations: those of ETA. As in the authors' code, a batch without a kept sample takes no step, not even
    towards the source weights.
    """

    name = "eata"
    needs_source = True
    needs_fisher = True
    measuring = "SourceStatistics.measure(model, source_loader, fisher=True)"
    fisher: Tensor
    anchor: Tensor

    def __init__(
        self, model: nn.Module, source: SourceStatistics, *, fisher_alpha: float = 2000.0, **shared: Any
    ) -> None:
        super().__init__(model, source, **shared)
        self.fisher_alpha = number("fisher_alpha", fisher_alpha, low=0)
        self.resolve(fisher_alpha=self.fisher_alpha)
        lacking = [name for name in self.learned if name not in source.fisher]
        if lacking:
            raise SourceError(
                f"eata needs the Fisher diagonal of what it adapts, and the source statistics lack it for "
                f"{len(lacking)} of {len(self.learned)} parameters, {lacking[0]} among them: "
                f"{self.measuring}, or with fisher=parameters"
            )
        with torch.inference_mode(False):
            weights = self._weights().detach()
            matters = torch.cat([source.fisher[name].flatten() for name in self.learned])
            self.register_buffer("anchor", weights, persistent=False)
            self.register_buffer("fisher", matters.to(weights), persistent=False)

    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        """ETA's loss and the penalty."""
        loss, used, reason = super().objective(logits, source)
        penalty = (self.fisher * (self._weights() - self.anchor) ** 2).sum()
        return Objective(loss + self.fisher_alpha * penalty, used, reason)

    def _weights(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.learned.values()])
