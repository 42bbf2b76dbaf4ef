"""RoTTA: a teacher answers, and the student learns from a balanced memory of recent, certain samples."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss
from equipoise.core.method import SAMPLES, Context, Counts, Memory, Plan, Update
from equipoise.functional import at_least_single, soft_cross_entropy
from equipoise.methods import _robust_teaching as robust
from equipoise.methods import _stored_samples as slots
from equipoise.methods._category_memory import free_categories, timeliness
from equipoise.methods._memory_updates import learn_from_memory
from equipoise.methods._teachers import TaughtMethod
from equipoise.network.batch import Batch
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName, Slope
from equipoise.network.student import Student
from equipoise.options import choice, flag, option
from equipoise.registry import register

_TARGETS = "targets"


@register
@dataclass(frozen=True, kw_only=True)
class Rotta(TaughtMethod):
    """Robust test-time adaptation (Yuan, Xie and Li, CVPR 2023), of models on images: for correlated streams.

    A batch is answered by the teacher in eval mode. Its samples, in order, are offered to a memory that is
    balanced over the classes predicted and prefers recent and certain ones (`_category_memory.join_memory`).
    After every `every` samples, in the middle of a batch too, the memory is learned from:

        L = mean_i w_i · CE(softmax(z'_i), softmax(z_i)),   w_i = 1 / (1 + exp(age_i / capacity)),
        θ ← optimiser step,   θ' ← decay · θ' + (1 − decay) · θ,

    with z' the teacher's logits, z the student's for a view of each image, θ' and θ the weights of both.
    Statistics of batch norm are robust: the views have a share of `norm_momentum` in them, and are normalised
    by them afterwards. A forward a batch; two and a backward of the memory at every update.

    Args:
        capacity: samples in the memory.
        every: samples between updates.
        decay: of the teacher.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the views.
        norm_momentum: the share that 64 samples of the memory have in the running statistics.

    Deviations: teacher and student have one set of statistics, which the student's forward moves once an
    update. The authors' teacher labels the memory in train mode, which moves statistics of its own by the
    memory before it labels it. No gradient flows through the statistics, and their variance is that of old
    and new samples together. Every class may have a sample in the memory, for more classes than slots too. An
    update that goes wrong is undone and the memory emptied.
    """

    name = "rotta"
    stores_samples = True
    counters = slots.STORING_COUNTERS
    arrives = (f"{SAMPLES}*",)

    capacity: int = option(64, low=1)
    every: int = option(64, low=1)
    decay: float = option(0.999, low=0, high=1)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    norm_momentum: float = option(0.05, low=0, high=1)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, the teacher and a free memory."""
        return {**super().initial(student, source), **free_categories(self.capacity, student.device)}

    def plan(self, context: Context) -> Plan:
        """Decide after which samples an update is due; not captured before the memory is full."""
        return slots.plan_updates(context, self.every)

    def step(self, context: Context) -> Update:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        return robust.memory_step(context, self.answer(context).logits, self.every, self._learn)

    def _learn(self, context: Context, logits: Tensor) -> Update:
        def slope_of(stored: Batch) -> tuple[Tensor, Slope]:
            targets = {_TARGETS: self.answer(context._replace(batch=stored)).logits}
            views = robust.robust_logits(context, stored, self.norm_momentum, mirrored=self.mirrored)
            loss = self.loss(views, context._replace(constants=targets)).value
            return loss, context.student.slope(loss)

        update = learn_from_memory(context, logits, slope_of, self.descent, self.steps)
        return robust.with_teacher(context, update, self.decay)

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The cross-entropy against the teacher's answers, weighted by timeliness."""
        targets = at_least_single(context.constants[_TARGETS]).softmax(1)
        weights = timeliness(context.memory, whole=not context.host_looks)
        return Loss((weights * soft_cross_entropy(logits, targets)).mean(), used=len(logits))

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse a memory of another size or other classes, and a count of an update long due."""
        slots.check_stored(memory, counts, self.capacity, self.every, student.classes)
