"""ROID: certain and diverse samples, consistent under views, and weights that stay near the source's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context, Shapes, Update
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName
from equipoise.core.student import Student
from equipoise.core.verdict import all_hold
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import symmetric_cross_entropy
from equipoise.methods.parts.teacher import moving_average
from equipoise.methods.parts.views import WEAK_DRAWS, weak_views
from equipoise.network.named_tensors import copy_unless, part, prefixed
from equipoise.options import choice, flag, option
from equipoise.registry import register

_TEMPERATURE = 1 / 3  # of the weights, the authors'
_LARGEST, _EPSILON = 0.99, 1e-5  # of the soft likelihood ratio, the authors'

SOURCE, _AVERAGE = "source.", "average"
_INERTIA, _KEPT = 0.9, 0.99  # of the moving average of probabilities and of the weights, the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Roid(WindowedMethod):
    """Robust test-time adaptation (Marsden, Döbler and Yang, WACV 2024), of models on images.

    With p̄ a moving average of the probabilities, w the weights of samples that are certain and unlike p̄
    (`sample_weights`), z the logits and z' those of a view of each image, by a second forward:

        L = Σ_i w_i · (SLR(z_i) + SCE(z_i, z'_i)) / N,   θ ← optimiser step,   θ ← .99 θ + .01 θ_source,

    SLR the soft likelihood ratio, SCE the symmetric cross-entropy; p̄ ← .9 p̄ + .1 mean_i p_i from uniform.

    Args:
        prior_correction: whether ln of the smoothed mean probability of the batch is added to the answers
            (`with_prior`); of a lone sample, that of its window with batch norm, else its own.
            For few classes at a time; elsewhere answers are more confident, and depend on all of a batch.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the random numbers.

    Deviations: those of TENT. The authors' configurations correct by the prior; here that is off by default.
    They multiply the logits by the smoothed prior, which flips its effect for negative logits. N is the real
    size of the batch. The authors' second forward has the images kept and no others; here it has all, with
    weights of 0 for the others: a selection would change batch norm's statistics. Of one sample w = 1.
    """

    name = "roid"
    needs_images = True
    arrives: ClassVar[Shapes] = {**WindowedMethod.arrives, _AVERAGE: ("classes",)}

    prior_correction: bool = flag(False)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source weights."""
        values = student.source_values(student.learned)
        return prefixed(SOURCE, {n: v.to(student.learned[n].detach()) for n, v in values.items()})

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The weighted likelihood ratio and consistency of the samples kept."""
        draws = context.rand(WEAK_DRAWS)
        views = context.batch.change(lambda images: weak_views(images, draws, mirrored=self.mirrored))
        other = context.student.on_batch_statistics(views, momentum=0.0)
        mean = at_least_single(logits.detach()).softmax(1).mean(0)
        average = context.memory.get(_AVERAGE, torch.full_like(mean, 1 / len(mean))).to(mean)
        weights, kept = sample_weights(logits, average)
        each = soft_likelihood_ratio(logits) + symmetric_cross_entropy(logits, other)
        moved = {_AVERAGE: torch.lerp(mean, average, _INERTIA)}
        return Loss((weights * each).sum() / len(logits), kept.sum(), moved)

    def _one_step(self, targets: Targets, context: Context, before: Update | None = None) -> Update:
        """Take one step, and the filter of the weights where it was taken."""
        update = super()._one_step(targets, context, before)
        if update.idle or update.loss is None:
            return update
        memory = self.filter_weights(context, all_hold(update.checks))
        return update._replace(memory={**update.memory, **memory})

    def answers(self, logits: Tensor) -> Tensor:
        """The logits, corrected by their prior if that is wanted."""
        return with_prior(logits.detach()) if self.prior_correction else logits

    def filter_weights(self, context: Context, taken: Tensor) -> dict[str, Tensor]:
        """Bring the weights nearer to the source's if a step was taken; the memory of it, which is none."""
        learned = context.student.learned
        copy_unless(~taken, learned, moving_average(learned, part(context.constants, SOURCE), _KEPT))
        return {}


def sample_weights(logits: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (N,) of samples that are certain and unlike the average, as constants; and which are kept.

    w = exp(d · c / τ), τ = ⅓, with d = 1 − cos(average, p) and c = −H(p), each stretched over the batch to 0
    to 1. Samples are kept, and have a weight other than 0, if d is not below its mean.

    Args:
        logits: of the batch, (N, C).
        average: the moving average of the probabilities, (C,).
    """
    logits = logits.detach()
    probabilities = at_least_single(logits).softmax(1)
    diversity = _stretched(1 - cosine_similarity(average.unsqueeze(0), probabilities))
    certainty = _stretched(-nats(logits))
    kept = diversity >= diversity.mean()
    return torch.where(kept, (diversity * certainty / _TEMPERATURE).exp(), 0.0), kept


def _stretched(values: Tensor) -> Tensor:
    """Values stretched to 0 to 1; zeros where all are the same, as of a single sample."""
    low, high = values.amin(), values.amax()
    return torch.where(high > low, (values - low) / torch.where(high > low, high - low, 1.0), 0.0)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """−Σ_c p_c ln(p_c / (1 − p_c) + 1e-5), p at most .99, one number a sample."""
    p = at_least_single(logits).softmax(1).clamp(max=_LARGEST)
    return -(p * (p / (1 - p) + _EPSILON).log()).sum(1)


def with_prior(logits: Tensor) -> Tensor:
    """Logits plus the logarithm of the smoothed mean of the batch's probabilities.

    π = mean_i p_i, s = max(1/N, 1/C) / max_c π_c, π̃ = (π + s) / (1 + s C): the softmax of z + ln π̃ is the
    posterior under the prior π̃, where that of the model was uniform. Rows that are not finite have no part in
    π.
    """
    rows, classes = logits.shape
    good = logits.isfinite().all(1, keepdim=True)
    probabilities = at_least_single(torch.where(good, logits, 0.0)).softmax(1)
    prior = torch.where(good | ~good.any(), probabilities, 0.0).sum(0) / torch.where(
        good.any(), good.sum(), rows
    )
    smoothing = max(1 / rows, 1 / classes) / prior.amax()
    smoothed = (prior + smoothing) / (1 + smoothing * classes)
    return logits + smoothed.log().to(logits)
