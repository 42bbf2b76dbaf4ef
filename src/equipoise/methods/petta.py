"""PeTTA: RoTTA that is held back more, and whose teacher follows less, the further it is from the source."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss
from equipoise.core.method import Context, Memory, Update
from equipoise.functional import at_least_single, soft_cross_entropy
from equipoise.methods import _class_features as classes
from equipoise.methods._linear_head import head_answers
from equipoise.methods._memory_updates import keep_if_fine
from equipoise.methods._robust_teaching import TARGETS, RobustMethod, learn_from_views, teacher_after
from equipoise.methods._teachers import TEACHER
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part
from equipoise.network.student import Student
from equipoise.options import option
from equipoise.registry import register

_SOURCE, _FAR, _ANCHOR = "source_logits", "divergence", "anchor"


@register
@dataclass(frozen=True, kw_only=True)
class Petta(RobustMethod):
    """Persistent test-time adaptation (Hoang, Vo and Do, NeurIPS 2024), for streams that recur.

    As RoTTA (`rotta.Rotta`), with a loss and a teacher that depend on the divergence γ of the features of the
    memory from the source's, class by class (`_class_features.followed_classes`):

        L = L_RoTTA + γ · penalty · (1 − cos(θ, θ⁰)) + mean_i CE(softmax(z⁰_i), softmax(z_i)),
        θ' ← (1 − a) θ' + a θ,   a = (1 − γ)(1 − decay),

    θ⁰ the source weights and z⁰ the source model's logits. A forward a batch; three and a backward of the
    memory at every update. Needs a model with a linear head.

    Args:
        penalty: the weight of the distance from the source weights where γ = 1; the authors' λ₀.

    and those of `_robust_teaching.RobustMethod`.

    Deviations: those of RoTTA. The cosine is that of the weights that learn, taken together. Variances below
    a hundredth of their mean count as that: a feature that the source never varies would decide alone.
    """

    name = "petta"
    needs_source = True
    needs_features = True
    default_teacher = "resident"
    measuring = "equipoise.SourceStatistics.measure(model, source_loader, features=True)"

    penalty: float = option(10.0, low=0)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """RoTTA's memory and the source's class means."""
        means = classes.first_means(classes.source_classes(student, source))
        return {**super().initial(student, source), **means}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The source's means and variances by class, and its weights as one vector."""
        anchor = _vector(student.source_values(student.learned)).to(student.device)
        return {**classes.source_classes(student, source), _ANCHOR: anchor}

    def learn(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Take a step on the memory, and let the teacher follow, both by the divergence."""
        student, memory = context.student, context.memory
        with student.replicated():
            with student.with_values(part(memory, TEACHER)):
                seen = head_answers(student, stored)
            source = student.source_logits(stored)
        means, far = classes.followed_classes(memory[classes.CLASS_MEANS], context.constants, seen)
        given = {TARGETS: seen.logits, _SOURCE: source, _FAR: far}
        update = learn_from_views(self, context, stored, logits, lambda: given)
        news = teacher_after(context, 1 - (1 - far) * (1 - self.decay))
        return keep_if_fine(update, memory, {**news, classes.CLASS_MEANS: means})

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """RoTTA's loss, the penalty and the cross-entropy against the source model's answers."""
        loss, given = super().loss(logits, context), context.constants
        moved = 1 - cosine_similarity(_vector(context.student.learned), given[_ANCHOR], 0)
        source = soft_cross_entropy(logits, at_least_single(given[_SOURCE]).softmax(1)).mean()
        return loss._replace(value=loss.value + self.penalty * given[_FAR] * moved + source)


def _vector(tensors: Memory) -> Tensor:
    """Tensors as one vector, at least in single precision."""
    return torch.cat([at_least_single(tensor).flatten() for tensor in tensors.values()])
