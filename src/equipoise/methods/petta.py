"""PeTTA: RoTTA that is held back more, and whose teacher follows less, the further it is from the source."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context, Memory, Update
from equipoise.core.student import Student
from equipoise.functional import at_least_single
from equipoise.methods.parts import robust_teacher
from equipoise.methods.parts.linear_head import HeadAnswers, head_answers, on_student
from equipoise.methods.parts.objectives import against
from equipoise.methods.parts.sample_memory import memory_step
from equipoise.methods.parts.teacher import TEACHER
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.options import option
from equipoise.registry import register

_CLASS_MEANS, _SUMS, _COUNTS = "class_means", "class_sums", "class_counts"
_SOURCE_MEANS, _VARIANCES, _KNOWN = "source_means", "variances", "known"
_SOURCE, _BY_SOURCE, _FAR = "source.", "source_logits", "divergence"
_FOLLOWS = 0.05  # share of an update in the means, the authors'
_FLOOR = 0.01  # of the mean variance: a feature that never varies on the source would decide alone


@register
@dataclass(frozen=True, kw_only=True)
class Petta(robust_teacher.RobustMethod):
    """Persistent test-time adaptation (Hoang, Vo and Do, NeurIPS 2024), for streams that recur.

    As RoTTA (`rotta.Rotta`), with a loss and a teacher that depend on the divergence γ of the features of the
    classes that came since the last update from the source's (`feature_divergence`):

        L = mean_i CE(softmax(z'_i), softmax(z_i)) + γ · penalty · (1 − cos(θ, θ⁰))
            + mean_i CE(softmax(z⁰_i), softmax(z_i)),
        θ' ← (1 − a) θ' + a θ,   a = (1 − γ)(1 − decay),

    θ⁰ the source weights and z⁰ the logits by them, normalised as the teacher's z' are. A forward a batch;
    three and a backward of the memory at every update. Needs a model with a linear head.

    Args:
        penalty: the weight of the distance from the source weights where γ = 1; the authors' λ₀.

    and those of `robust_teacher.RobustMethod`.

    Deviations: those of RoTTA. Of the authors' two losses this is "ce"; "sce", their default, is symmetric
    and takes images without views, too, by a forward more. The cosine is of all weights that learn together.
    Variances below a hundredth of their mean count as that: a feature that the source never varies would
    decide alone. γ is of all samples since the last update; the authors take an update a batch.
    """

    name = "petta"
    needs_source = True
    needs_features = True
    measuring = "equipoise.SourceStatistics.measure(model, source_loader, features=True)"

    penalty: float = option(10.0, low=0)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """RoTTA's memory and the source's class means."""
        means = first_means(source_classes(student, source))
        return {**super().initial(student, source), **means}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source's means and variances by class, and its weights."""
        weights = {n: v.to(student.device) for n, v in student.source_values(student.learned).items()}
        return {**source_classes(student, source), **prefixed(_SOURCE, weights)}

    def step(self, context: Context) -> Update:
        """Answer, then offer samples and features to the memory, with an update after each `every`."""
        with context.student.with_values(part(context.memory, TEACHER)):
            seen = head_answers(context.student, context.batch)
        offered = robust_teacher.offering(context, seen.logits)

        def join(memory: Memory, inside: Tensor) -> dict[str, Tensor]:
            return {**offered(memory, inside), **joined_sums(memory, seen, inside)}

        return memory_step(context, seen.logits, self.every, join, self.learn)

    def learn(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Take steps on the memory, and begin to count features from zero."""
        update = super().learn(context, stored, logits)
        return update._replace(memory={**update.memory, **no_sums(context.memory)})

    def targets(self, context: Context, stored: Batch) -> Targets:
        """The teacher's logits for the memory, those by the source weights, and the divergence."""
        taught, student = super().targets(context, stored), context.student
        with student.with_values(part(context.constants, _SOURCE)):
            by_source = student.frozen(stored)
        far = feature_divergence(context.memory, context.constants)
        return {**taught, _BY_SOURCE: by_source, _FAR: far}

    def followed(self, context: Context) -> dict[str, Tensor]:
        """The teacher, which follows less with the divergence, and the means of features by class."""
        far = feature_divergence(context.memory, context.constants)
        teacher = robust_teacher.teacher_after(context, 1 - (1 - far) * (1 - self.decay))
        return {**teacher, **followed_means(context.memory)}

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The cross-entropy against the teacher and against the source weights, and the penalty."""
        moved = cosine_distance(context.student.learned, part(context.constants, _SOURCE))
        taught = against(logits, targets[robust_teacher.TAUGHT]) + against(logits, targets[_BY_SOURCE])
        return Loss(taught.mean() + self.penalty * targets[_FAR] * moved, used=len(logits))


def source_classes(student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
    """The source's means and variances by class, and which classes it has, as constants of a method."""
    features = {} if source is None else source.features
    means, variances = (on_student(features[n], student) for n in ("class_means", "class_variances"))
    known = features["class_counts"].to(student.device) > 0
    floor = _FLOOR * variances[known].mean()
    tiny = torch.finfo(variances.dtype).tiny
    return {_SOURCE_MEANS: means, _VARIANCES: variances.clamp(min=floor).clamp(min=tiny), _KNOWN: known}


def first_means(constants: Memory) -> dict[str, Tensor]:
    """The memory before the first batch: the source's means, and no features since the last update."""
    means = {_CLASS_MEANS: constants[_SOURCE_MEANS].clone()}
    return {**means, **no_sums(means)}


def no_sums(memory: Memory) -> dict[str, Tensor]:
    """The memory of no features since the last update."""
    means = memory[_CLASS_MEANS]
    return {_SUMS: torch.zeros_like(means), _COUNTS: means.new_zeros(len(means))}


def joined_sums(memory: Memory, seen: HeadAnswers, inside: Tensor) -> dict[str, Tensor]:
    """The memory after the features of good samples that are `inside` have joined their predicted classes.

    A class whose sum would not be finite is left as it is.
    """
    sums, counts, taken = memory[_SUMS], memory[_COUNTS], seen.good & inside
    labels = torch.where(taken, seen.logits.argmax(1), -1)
    own = (labels == torch.arange(len(sums), device=sums.device).unsqueeze(1)).to(sums)
    news = sums + own @ torch.where(taken.unsqueeze(1), seen.features, 0.0).to(sums)
    fine = news.isfinite().all(1)
    return {
        _SUMS: torch.where(fine.unsqueeze(1), news, sums),
        _COUNTS: counts + torch.where(fine, own.sum(1), 0.0),
    }


def feature_divergence(memory: Memory, constants: Memory) -> Tensor:
    """The distance from the source of the classes that came since the last update: 0 as there, towards 1 far.

    1 − exp(−mean_{c,d} (μ_cd − μ⁰_cd)² / σ²_cd) over those of them that the source has, with its means μ⁰ and
    variances σ², and μ the means before these samples have joined them; 0 without any.
    """
    apart = ((memory[_CLASS_MEANS] - constants[_SOURCE_MEANS]) ** 2 / constants[_VARIANCES]).mean(1)
    there = (memory[_COUNTS] > 0) & constants[_KNOWN]
    return -torch.expm1(-torch.where(there, apart, 0.0).sum() / there.sum().clamp(min=1))


def followed_means(memory: Memory) -> dict[str, Tensor]:
    """μ_c ← .95 μ_c + .05 · mean of the features of class c since the last update, if any came."""
    means, counts = memory[_CLASS_MEANS], memory[_COUNTS].unsqueeze(1)
    followed = torch.lerp(means, memory[_SUMS] / counts.clamp(min=1), _FOLLOWS)
    return {_CLASS_MEANS: torch.where(counts > 0, followed, means)}


def cosine_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """1 − cos of two sets of weights of the same names, each as one vector, in at least single precision."""
    left, right = (torch.cat([at_least_single(each[n]).flatten() for n in one]) for each in (one, other))
    return 1 - cosine_similarity(left, right, dim=0)
