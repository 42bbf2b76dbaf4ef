"""EATA: ETA with a penalty on moving the weights that matter for the source domain."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.core.student import Student
from equipoise.errors import SourceError
from equipoise.methods.eta import Eta
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Eata(Eta):
    """Efficient anti-forgetting test-time adaptation (Niu et al., ICML 2022).

        L = L_ETA + fisher_alpha · Σ_j F_j (θ_j − θ⁰_j)²,

    with θ⁰ the source weights and F how much they matter there (`source_moments.Fisher`), measured with
    `SourceStatistics.measure(model, source_loader, fisher=True)` and kept in the statistics' file.

    Args:
        fisher_alpha: the weight of the penalty; the authors use 2000 for ImageNet, 1 for CIFAR.

    Deviations: those of ETA. The default of `fisher_alpha` is that for ImageNet whatever the number of
    classes, while that of `epsilon` follows it: for few classes set 1. As in the authors' code, a batch
    without a kept sample takes no step, not even towards the source weights.
    """

    name = "eata"
    needs_source = True
    needs_fisher = True
    measuring = "equipoise.SourceStatistics.measure(model, source_loader, fisher=True)"

    fisher_alpha: float = option(2000.0, low=0)

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source weights and the Fisher diagonal, each as one vector."""
        fisher = {} if source is None else source.fisher
        anchor = _vector(student.source_values(student.learned)).to(_vector(student.learned).detach())
        return {
            "anchor": anchor,
            "fisher": _vector({name: fisher[name] for name in student.learned}).to(anchor),
        }

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """ETA's loss and the penalty."""
        loss, constants = super().loss(logits, targets, context), context.constants
        apart = _vector(context.student.learned) - constants["anchor"]
        return loss._replace(value=loss.value + self.fisher_alpha * (constants["fisher"] * apart**2).sum())

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse source statistics without the Fisher diagonal of a parameter that learns."""
        lacking = [name for name in student.learned if source is None or name not in source.fisher]
        if lacking:
            raise SourceError(
                "eata needs the Fisher diagonal of the parameters that learn, and the source statistics lack "
                f"it for {len(lacking)} of {len(student.learned)} parameters, {lacking[0]} among them: "
                f"{self.measuring}, or with fisher=parameters"
            )


def _vector(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
