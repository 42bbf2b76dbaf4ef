"""CoTTA: all weights learn from an averaged teacher, and some are restored at random."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context, Update
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName
from equipoise.core.student import Student
from equipoise.functional import at_least_single
from equipoise.methods.parts.objectives import against, symmetric_cross_entropy
from equipoise.methods.parts.teacher import TEACHER, TeacherMethod, moving_average
from equipoise.methods.parts.views import ROWS_AT_ONCE, TILE, WEAK_DRAWS, views_of, weak_views
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, choice, flag, option
from equipoise.registry import register

_ANSWERS, _CONFIDENCE = "answers", "confidence"
_RESTORES = {"adam": 0.01, "sgd": 0.001}  # the authors', for CIFAR and for ImageNet


@register
@dataclass(frozen=True, kw_only=True)
class Cotta(TeacherMethod):
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
        limit = _confidence_limit(source) if given is None else torch.tensor(given)
        return {_CONFIDENCE: limit.to(student.device)}

    def step(self, context: Context) -> Update:
        """Learn from the teacher's logits, let the teacher follow, and restore some weights."""
        student, teacher = context.student, part(context.memory, TEACHER)
        source = student.source_logits(context.batch)
        unsure = at_least_single(source).softmax(1).amax(1).mean() < context.constants[_CONFIDENCE]
        with torch.no_grad(), student.with_values(teacher):
            answer = self._view_targets(context, unsure)
        update = self.descend_on({_ANSWERS: answer}, context)
        moved = moving_average(teacher, student.learned, self.decay)
        self._restore_some(context)
        memory = {**update.memory, **prefixed(TEACHER, moved)}
        return update._replace(logits=answer, memory=memory, source_logits=source)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The cross-entropy against the teacher's answers, with "sgd" the symmetric one."""
        distance = against if self.optimizer == "adam" else symmetric_cross_entropy
        return Loss(distance(logits, targets[_ANSWERS]).mean(), used=len(logits))

    def _view_targets(self, context: Context, unsure: Tensor) -> Tensor:
        """The logits, averaged over views where the flag `unsure` is true; a captured step computes both."""
        draws = context.rand(self.views, WEAK_DRAWS)
        tile = context.rand_like(draws.new_empty(TILE))
        needed = bool(unsure) if context.host_looks else None
        plain = None if needed else context.student.on_batch_statistics(context.batch, momentum=0.0)
        if plain is not None and needed is False:
            return plain
        averaged = self._view_logits(context, draws, tile)
        return averaged if plain is None else torch.where(unsure, averaged, plain)

    def _view_logits(self, context: Context, draws: Tensor, tile: Tensor) -> Tensor:
        """Logits averaged over random views of each image, some 256 views in a forward; nothing moves.

        They are normalised by the statistics of the views in the forward; those of a lone sample, which has
        none, by the running ones.
        """
        student, batch = context.student, context.batch
        rows, total = student.all_rows(batch), torch.zeros((), device=student.device)
        forward = partial(student.on_batch_statistics, momentum=0.0) if rows > 1 else student.frozen
        view = partial(weak_views, tile=tile, mirrored=self.mirrored)
        for some in draws.split(max(1, ROWS_AT_ONCE // rows), 1):
            with student.with_views(some.shape[1]):
                logits = forward(views_of(batch, some, view))
            total = total + logits.unflatten(0, (-1, some.shape[1])).sum(1)
        return total / self.views

    def _restore_some(self, context: Context) -> None:
        """Give each weight that learns its source value back with a probability; the draws are the host's."""
        if not self.restore:
            return
        student = context.student
        source = student.source_values(student.learned)
        with torch.no_grad():
            for name, weight in student.learned.items():
                chosen = context.rand_like(at_least_single(weight)) < self.restore
                weight.copy_(torch.where(chosen, source[name].to(weight, non_blocking=True), weight))


def _confidence_limit(source: SourceStatistics | None) -> Tensor:
    """The 5 % quantile of the confidence on source samples, minus .05; ∞ where it was not measured."""
    measured = torch.zeros(0) if source is None else source.confidences
    if not len(measured):
        return torch.tensor(torch.inf)
    below, share = divmod(0.05 * (len(measured) - 1), 1)  # torch.quantile reads its argument on the host
    above = min(int(below) + 1, len(measured) - 1)
    return torch.lerp(measured[int(below)], measured[above], share) - 0.05
