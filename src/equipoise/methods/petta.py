"""PeTTA: RoTTA that is held back more, and whose teacher follows less, the further it is from the source."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss
from equipoise.core.method import Context, Memory, Update
from equipoise.methods import _class_features as classes
from equipoise.methods import _robust_teaching as teaching
from equipoise.methods._averages import cosine_distance
from equipoise.methods._category_memory import offering
from equipoise.methods._linear_head import head_answers
from equipoise.methods._memory_updates import keep_if_fine, memory_step
from equipoise.methods._teachers import TEACHER, against
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.student import Student
from equipoise.options import option
from equipoise.registry import register

_SOURCE, _SOURCE_LOGITS, _FAR = "source.", "source_logits", "divergence"


@register
@dataclass(frozen=True, kw_only=True)
class Petta(teaching.RobustMethod):
    """Persistent test-time adaptation (Hoang, Vo and Do, NeurIPS 2024), for streams that recur.

    As RoTTA (`rotta.Rotta`), with a loss and a teacher that depend on the divergence γ of the features of the
    classes that came since the last update from the source's (`_class_features.feature_divergence`):

        L = mean_i CE(softmax(z'_i), softmax(z_i)) + γ · penalty · (1 − cos(θ, θ⁰))
            + mean_i CE(softmax(z⁰_i), softmax(z_i)),
        θ' ← (1 − a) θ' + a θ,   a = (1 − γ)(1 − decay),

    θ⁰ the source weights and z⁰ the logits by them, normalised as the teacher's z' are. A forward a batch;
    three and a backward of the memory at every update. Needs a model with a linear head.

    Args:
        penalty: the weight of the distance from the source weights where γ = 1; the authors' λ₀.

    and those of `_robust_teaching.RobustMethod`.

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
        means = classes.first_means(classes.source_classes(student, source))
        return {**super().initial(student, source), **means}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source's means and variances by class, and its weights."""
        weights = {n: v.to(student.device) for n, v in student.source_values(student.learned).items()}
        return {**classes.source_classes(student, source), **prefixed(_SOURCE, weights)}

    def step(self, context: Context) -> Update:
        """Answer, then offer samples and features to the memory, with an update after each `every`."""
        with context.student.with_values(part(context.memory, TEACHER)):
            seen = head_answers(context.student, context.batch)
        offered = offering(context, seen.logits)

        def join(memory: Memory, inside: Tensor) -> dict[str, Tensor]:
            return {**offered(memory, inside), **classes.joined_sums(memory, seen, inside)}

        return memory_step(context, seen.logits, self.every, join, self.learn)

    def learn(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Take a step on the memory, and let the teacher follow, both by the divergence."""
        memory, far = context.memory, classes.feature_divergence(context.memory, context.constants)

        def given() -> Memory:
            teacher = teaching.teacher_logits(self, context, stored)
            source = teaching.logits_by(context.student, stored, part(context.constants, _SOURCE))
            return {teaching.TARGETS: teacher, _SOURCE_LOGITS: source, _FAR: far}

        update = teaching.learn_from_views(self, context, stored, logits, given)
        news = teaching.teacher_after(context, 1 - (1 - far) * (1 - self.decay))
        update = keep_if_fine(update, memory, {**news, **classes.followed_means(memory)})
        return update._replace(memory={**update.memory, **classes.no_sums(memory)})

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The cross-entropy against the teacher and against the source weights, and the penalty."""
        given = context.constants
        moved = cosine_distance(context.student.learned, part(given, _SOURCE))
        taught = against(logits, given[teaching.TARGETS]) + against(logits, given[_SOURCE_LOGITS])
        return Loss(taught.mean() + self.penalty * given[_FAR] * moved, used=len(logits))
