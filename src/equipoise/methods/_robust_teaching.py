"""The base of RoTTA and PeTTA: a teacher that answers, a balanced memory, views and robust statistics."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import SAMPLES, Context, Counts, Memory, Plan, Update
from equipoise.methods import _stored_samples as slots
from equipoise.methods._averages import moving_average
from equipoise.methods._category_memory import free_categories, offering
from equipoise.methods._linear_head import on_student
from equipoise.methods._memory_updates import learn_from_memory, memory_step
from equipoise.methods._teachers import TEACHER, TaughtMethod
from equipoise.methods._views import TILE, WEAK_DRAWS, weak_views
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName, Slope
from equipoise.network.running_statistics import REFERENCE_BATCH
from equipoise.network.student import Student
from equipoise.options import choice, flag, option

TARGETS = "targets"
"""The constant of a loss with the teacher's logits for the memory."""

_UPDATE = 64  # samples that the share of a memory in the statistics is for: the authors' memory


@dataclass(frozen=True, kw_only=True)
class RobustMethod(TaughtMethod):
    """A teacher that answers, and a student that learns from a balanced memory by robust statistics.

    Args:
        capacity: samples in the memory.
        every: samples between updates.
        decay: of the teacher.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the views.
        norm_momentum: the share that 64 samples of the memory have in the running statistics.
    """

    needs_images = True
    stores_samples = True
    counters = slots.STORING_COUNTERS
    arrives = (f"{SAMPLES}*",)

    capacity: int = option(64, low=1, high=slots.MOST)
    every: int = option(64, low=1, high=2**63 - 1)
    decay: float = option(0.999, low=0, high=1)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    norm_momentum: float = option(0.05, low=0, high=1)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, the teacher and a free memory."""
        like = on_student(torch.zeros(()), student)
        return {**super().initial(student, source), **free_categories(self.capacity, like)}

    def plan(self, context: Context) -> Plan:
        """Decide after which samples an update is due; not captured before the memory is full."""
        return slots.plan_updates(context, self.every)

    def step(self, context: Context) -> Update:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        logits = self.answer(context).logits
        return memory_step(context, logits, self.every, offering(context, logits), self.learn)

    @abstractmethod
    def learn(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Learn from the samples in the memory; `logits` are the answers to the batch."""

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse a memory of another size or other classes, and a count of an update long due."""
        slots.check_stored(memory, counts, self.capacity, self.every, student.classes)


def learn_from_views(
    method: RobustMethod, context: Context, stored: Batch, logits: Tensor, constants: Callable[[], Memory]
) -> Update:
    """Take steps down the method's loss of views of the memory, with constants that are made for each."""

    def slope_of() -> tuple[Tensor, Slope]:
        given = {**context.constants, **constants()}
        views = _view_logits(method, context, stored)
        loss = method.loss(views, context._replace(constants=given)).value
        return loss, context.student.slope(loss)

    return learn_from_memory(context, stored, logits, slope_of, method.descent, method.steps)


def logits_by(student: Student, stored: Batch, weights: Memory) -> Tensor:
    """The logits of samples in eval mode by other weights, and the statistics that the student has now."""
    with student.with_values(weights):
        return student.frozen(stored)


def teacher_logits(method: RobustMethod, context: Context, stored: Batch) -> Tensor:
    """The teacher's logits for the memory, by statistics that the memory joins first.

    64 samples have the share `norm_momentum` in the statistics, fewer have less (`running_statistics`).
    """
    momentum = 1 - (1 - method.norm_momentum) ** (REFERENCE_BATCH / _UPDATE)
    with torch.no_grad(), context.student.with_values(part(context.memory, TEACHER)):
        return context.student.on_running_statistics(stored, momentum)[0]


def _view_logits(method: RobustMethod, context: Context, stored: Batch) -> Tensor:
    """The student's logits for a view of each image in the memory, by the statistics as they are now."""
    student = context.student
    draws = context.rand_like(torch.empty(method.capacity, WEAK_DRAWS, device=student.device))
    tile = context.rand_like(torch.empty(TILE, device=student.device))

    def view(images: Tensor) -> Tensor:
        # Numbers are drawn for all slots, taken or not.
        return weak_views(images, draws[: len(images)], tile=tile, mirrored=method.mirrored)

    return student.on_running_statistics(stored.change(view), momentum=0.0)[0]


def teacher_after(context: Context, decay: float | Tensor) -> dict[str, Tensor]:
    """The memory of the teacher after it has followed the student."""
    return prefixed(TEACHER, moving_average(part(context.memory, TEACHER), context.student.learned, decay))
