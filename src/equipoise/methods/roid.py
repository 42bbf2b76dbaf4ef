"""ROID: certain and diverse samples, consistent under views, and weights that stay near the source's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss
from equipoise.core.method import SAMPLES, Context, Counts, Memory, Update
from equipoise.functional import at_least_single
from equipoise.methods import _roid_losses as losses
from equipoise.methods._average_answer import AVERAGE_ANSWER, check_average
from equipoise.methods._averages import moving_average
from equipoise.methods._lone_samples import WindowedMethod
from equipoise.methods._views import WEAK_DRAWS, weak_views
from equipoise.network.named_tensors import copy_unless, part, prefixed
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName
from equipoise.network.student import Student
from equipoise.network.verdict import all_hold
from equipoise.options import choice, flag, option
from equipoise.registry import register

SOURCE = "source."
_INERTIA, _KEPT = 0.9, 0.99  # of the moving average of probabilities and of the weights, the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Roid(WindowedMethod):
    """Robust test-time adaptation (Marsden, Döbler and Yang, WACV 2024), of models on images.

    With p̄ a moving average of the probabilities, w the weights of samples that are certain and unlike p̄
    (`_roid_losses.sample_weights`), z the logits and z' those of a view of each image, by a second forward:

        L = Σ_i w_i · (SLR(z_i) + SCE(z_i, z'_i)) / N,   θ ← optimiser step,   θ ← .99 θ + .01 θ_source,

    SLR the soft likelihood ratio, SCE the symmetric cross-entropy; p̄ ← .9 p̄ + .1 mean_i p_i from uniform.

    Args:
        prior_correction: whether ln of the smoothed mean probability of the batch is added to the answers
            (`_roid_losses.with_prior`); of a lone sample, that of its window with batch norm, else its own.
            For few classes at a time; elsewhere answers are more confident, and depend on all of a batch.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the random numbers.

    Deviations: those of TENT. The authors multiply the logits by the smoothed prior, which flips its effect
    for negative logits. N is the real size of the batch. All images are in the second forward, with weights
    of 0 where they are not kept: a selection would change batch norm's statistics. Of one sample w = 1.
    """

    name = "roid"
    needs_images = True
    arrives = (f"{SAMPLES}*", AVERAGE_ANSWER)

    prior_correction: bool = flag(False)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source weights."""
        values = student.source_values(student.learned)
        return prefixed(SOURCE, {n: v.to(student.learned[n].detach()) for n, v in values.items()})

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The weighted likelihood ratio and consistency of the samples kept."""
        draws = context.rand(WEAK_DRAWS)
        views = context.batch.change(lambda images: weak_views(images, draws, mirrored=self.mirrored))
        other = context.student.on_batch_statistics(views, momentum=0.0)
        mean = at_least_single(logits.detach()).softmax(1).mean(0)
        average = context.memory.get(AVERAGE_ANSWER, torch.full_like(mean, 1 / len(mean))).to(mean)
        weights, kept = losses.sample_weights(logits, average)
        each = losses.soft_likelihood_ratio(logits) + losses.symmetric_cross_entropy(logits, other)
        moved = {AVERAGE_ANSWER: torch.lerp(mean, average, _INERTIA)}
        return Loss((weights * each).sum() / len(logits), kept.sum(), moved)

    def _one_step(self, context: Context, before: Update | None = None) -> Update:
        """Take one step, and the filter of the weights where it was taken."""
        update = super()._one_step(context, before)
        if update.idle or update.loss is None:
            return update
        memory = self.filter_weights(context, all_hold(update.checks))
        return update._replace(memory={**update.memory, **memory})

    def answers(self, logits: Tensor) -> Tensor:
        """The logits, corrected by their prior if that is wanted."""
        return losses.with_prior(logits.detach()) if self.prior_correction else logits

    def filter_weights(self, context: Context, taken: Tensor) -> dict[str, Tensor]:
        """Bring the weights nearer to the source's if a step was taken; the memory of it, which is none."""
        learned = context.student.learned
        copy_unless(~taken, learned, moving_average(learned, part(context.constants, SOURCE), _KEPT))
        return {}

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse a window of another size, and an average of another number of classes."""
        super().check_memory(student, memory, counts)
        check_average(memory, student.classes)
