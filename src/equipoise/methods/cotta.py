"""CoTTA: all weights learn from an averaged teacher, and some are restored at random."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss
from equipoise.core.method import Context, Update
from equipoise.functional import at_least_single
from equipoise.methods import _teachers as teachers
from equipoise.methods._averages import moving_average
from equipoise.methods._roid_losses import symmetric_cross_entropy
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.network.student import Student
from equipoise.options import checked_by, choice, flag, option
from equipoise.registry import register

_TARGETS, _CONFIDENCE = "targets", "confidence"
_RESTORES = {"adam": 0.01, "sgd": 0.001}  # the authors', for CIFAR and for ImageNet


@register
@dataclass(frozen=True, kw_only=True)
class Cotta(teachers.TaughtMethod):
    """Continual test-time adaptation (Wang et al., CVPR 2022), of models on images.

    With z' the teacher's logits, or their mean over `views` views where the source model's mean confidence in
    the batch is below `confidence`, z the student's, and θ', θ the weights of both:

        L = mean_i CE(softmax(z'_i), softmax(z_i)),   θ ← optimiser step,   θ' ← decay · θ' + (1 − decay) · θ,

    with "sgd" the mean of this and of CE(softmax(z_i), softmax(z'_i)). Then each weight of θ goes back to its
    source value with probability `restore`. The answer is z'. A batch takes two forwards, a backward, and one
    or `views` forwards of the teacher (a captured step: both).

    Args:
        views: views of each image.
        confidence: None: the 5 % quantile of the confidence on source samples, minus .05 (the authors' rule);
            without source statistics the views are always used.
        decay: of the teacher.
        restore: None: .01 with "adam", .001 with "sgd"; draws a number on the host for each weight.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the random numbers.
        optimizer: "adam", with the loss, the `restore` and the `learning_rate`, 1e-3, of the authors' CIFAR
            experiments, or "sgd", with those of their ImageNet ones, a rate of .01.

    Deviations: the confidence is that of the source model in eval mode, as in the source statistics; the
    authors' code normalises by the batch. All parameters that learn are restored, whatever their names. Each
    image has its own views, and some 256 views are normalised together. `predict` uses no views.
    """

    name = "cotta"
    needs_images = True
    default_source_copy = "resident"
    default_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.01, "adam": 1e-3}

    views: int = option(32, low=1, high=2**20)
    confidence: float | None = option(None, low=0, high=1)
    decay: float = option(0.999, low=0, high=1)
    restore: float | None = option(None, low=0, high=1)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    parameters: Parameters = checked_by(checked_parameters, "all")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restore is None:
            object.__setattr__(self, "restore", _RESTORES[self.optimizer])

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The confidence below which views are used."""
        given = self.confidence
        limit = teachers.confidence_limit(source) if given is None else torch.tensor(given)
        return {_CONFIDENCE: limit.to(student.device)}

    def step(self, context: Context) -> Update:
        """Learn from the teacher's logits, let the teacher follow, and restore some weights."""
        student, teacher = context.student, part(context.memory, teachers.TEACHER)
        source = student.source_logits(context.batch)
        unsure = at_least_single(source).softmax(1).amax(1).mean() < context.constants[_CONFIDENCE]
        with torch.no_grad(), student.with_values(teacher):
            targets = teachers.view_targets(context, self.views, unsure, mirrored=self.mirrored)
        update = super().step(context._replace(constants={_TARGETS: targets}))
        moved = moving_average(teacher, student.learned, self.decay)
        teachers.restore_some(context, self.restore or 0.0)
        memory = {**update.memory, **prefixed(teachers.TEACHER, moved)}
        return update._replace(logits=targets, memory=memory, source_logits=source)

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The cross-entropy against the teacher's answers, with "sgd" the symmetric one."""
        distance = teachers.against if self.optimizer == "adam" else symmetric_cross_entropy
        return Loss(distance(logits, context.constants[_TARGETS]).mean(), used=len(logits))
