"""CoTTA: all weights learn from an averaged teacher, and some are restored at random."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import GradientMethod, Loss
from equipoise.core.method import Answer, Context, Memory, Update
from equipoise.functional import at_least_single, soft_cross_entropy
from equipoise.methods._averages import moving_average
from equipoise.methods._teachers import TEACHER, draw_views, first_teacher, restore_some, view_logits
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.network.student import Student
from equipoise.options import checked_by, choice, flag, option
from equipoise.registry import register

_TARGETS, _CONFIDENCE = "targets", "confidence"


@register
@dataclass(frozen=True, kw_only=True)
class Cotta(GradientMethod):
    """Continual test-time adaptation (Wang et al., CVPR 2022), of models on images.

    With z' the teacher's logits, or their mean over `views` views where the source model's mean confidence in
    the batch is below `confidence`, z the student's, and θ', θ the weights of both:

        L = mean_i CE(softmax(z'_i), softmax(z_i)),   θ ← optimiser step,   θ' ← decay · θ' + (1 − decay) · θ,

    then each weight of θ goes back to its source value with probability `restore`. The answer is z'. A batch
    takes forwards of the source model and the student, a backward, and one or `views` forwards of the teacher
    (a captured step: both).

    Args:
        views: views of each image.
        confidence: None: the 5 % quantile of the confidence on source samples, minus .05 (the authors' rule);
            without source statistics the views are always used.
        decay: of the teacher.
        restore: .01 is the authors' for CIFAR, .001 for ImageNet; a random number of the host for each weight.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the random numbers.
        learning_rate: by default 1e-3 for "adam" (the authors, on CIFAR) and .01 for "sgd" (on ImageNet).

    Deviations: the confidence is that of the source model in eval mode, as in the source statistics; the
    authors' code normalises by the batch. All parameters that learn are restored, whatever their names. Each
    image has its own views, and some 256 views are normalised together. `predict` uses no views.
    """

    name = "cotta"
    asks_source = True
    default_teacher = "resident"
    default_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.01, "adam": 1e-3}

    views: int = option(32, low=1)
    confidence: float | None = option(None, low=0, high=1)
    decay: float = option(0.999, low=0, high=1)
    restore: float = option(0.01, low=0, high=1)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    parameters: Parameters = checked_by(checked_parameters, "all")

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, and the teacher."""
        return {**super().initial(student, source), **first_teacher(student)}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The confidence below which views are used."""
        level, measured = self.confidence, torch.zeros(0) if source is None else source.confidences
        if level is None:
            level = float(measured.quantile(0.05)) - 0.05 if len(measured) else math.inf
        return {_CONFIDENCE: torch.tensor(level, device=student.device)}

    def step(self, context: Context) -> Update:
        """Learn from the teacher's logits, let the teacher follow, and restore some weights."""
        student, teacher = context.student, part(context.memory, TEACHER)
        with torch.no_grad(), student.with_values(teacher):
            targets = self._targets(context)
        update = super().step(context._replace(constants={_TARGETS: targets}))
        moved = moving_average(teacher, student.learned, self.decay)
        restore_some(context, self.restore)
        return update._replace(logits=targets, memory={**update.memory, **prefixed(TEACHER, moved)})

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The cross-entropy against the teacher's answers."""
        targets = at_least_single(context.constants[_TARGETS]).softmax(1)
        return Loss(soft_cross_entropy(logits, targets).mean(), used=len(logits))

    def _targets(self, context: Context) -> Tensor:
        """The teacher's logits; a captured step computes them in both ways."""
        draws, tile = draw_views(context, self.views)
        unsure = _source_confidence(context) < context.constants[_CONFIDENCE]
        needed = bool(unsure) if context.host_looks else None
        plain = None if needed else context.student.on_batch_statistics(context.batch, momentum=0.0)
        if plain is not None and needed is False:
            return plain
        averaged = view_logits(context, draws, tile, mirrored=self.mirrored)
        return averaged if plain is None else torch.where(unsure, averaged, plain)

    def answer(self, context: Context) -> Answer:
        """The teacher's logits in eval mode."""
        with context.student.with_values(part(context.memory, TEACHER)):
            return Answer(context.student.frozen(context.batch))

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """A copy of the network with the teacher's weights."""
        return student.export(part(memory, TEACHER))


def _source_confidence(context: Context) -> Tensor:
    """The source model's mean confidence in the batch."""
    if context.view is None:
        raise RuntimeError("cotta asks the source model about each batch")
    return at_least_single(context.view.logits).softmax(1).amax(1).mean()
