"""RoTTA: a teacher answers, and the student learns from a balanced memory of recent, certain samples."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.methods.parts.objectives import against
from equipoise.methods.parts.robust_teacher import TAUGHT, RobustMethod, timeliness
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Rotta(RobustMethod):
    """Robust test-time adaptation (Yuan, Xie and Li, CVPR 2023), of models on images: for correlated streams.

    A batch is answered by the teacher in eval mode. Its samples, in order, are offered to a memory that is
    balanced over the classes predicted and prefers recent and certain ones (`robust_teacher.join_memory`).
    After every `every` samples, in the middle of a batch too, the memory is learned from:

        L = mean_i w_i · CE(softmax(z'_i), softmax(z_i)),   w_i = 1 / (1 + exp(age_i / capacity)),
        θ ← optimiser step,   θ' ← decay · θ' + (1 − decay) · θ,

    with z' the teacher's logits, z the student's for a view of each image, θ' and θ the weights of both.
    Statistics of batch norm are robust: the memory has a share of `norm_momentum` in them before the teacher
    labels it. A forward a batch; two and a backward of the memory at every update.

    Args: those of `robust_teacher.RobustMethod`.

    Deviations: teacher and student have one set of statistics, which the memory moves once an update as it
    moves those of the authors' teacher; their student has others, of the views. The variance is that of old
    and new samples together. An update that goes wrong is undone and the memory emptied.
    """

    name = "rotta"

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The cross-entropy against the teacher's answers, weighted by timeliness."""
        weights = timeliness(context.memory, whole=not context.host_looks)
        return Loss((weights * against(logits, targets[TAUGHT])).mean(), used=len(logits))
