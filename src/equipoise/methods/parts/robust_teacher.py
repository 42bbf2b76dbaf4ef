"""The base of RoTTA and PeTTA: a teacher that answers, a balanced memory, views and robust statistics."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Targets
from equipoise.core.method import Context, Memory, Update
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName, Slope
from equipoise.core.student import Student
from equipoise.core.verdict import host_knows
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts import sample_memory as slots
from equipoise.methods.parts.linear_head import on_student
from equipoise.methods.parts.sample_memory import SLOT_CLASSES
from equipoise.methods.parts.teacher import TEACHER, TeacherMethod, moving_average
from equipoise.methods.parts.views import TILE, WEAK_DRAWS, weak_views
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.running_statistics import REFERENCE_BATCH
from equipoise.options import choice, flag, option

TAUGHT = "teacher"
"""The target of a loss that is the teacher's logits for the memory."""

_AGES, _NATS = "ages", "nats"
_UPDATE = 64  # samples that the share of a memory in the statistics is for: the authors' memory


@dataclass(frozen=True, kw_only=True)
class RobustMethod(slots.StoringMethod, TeacherMethod):
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

    def step(self, context: Context) -> Update:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        logits = self.answer(context).logits
        return slots.memory_step(context, logits, self.every, offering(context, logits), self.learn)

    def learn(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Take steps on views of the samples in the memory; `logits` are the answers to the batch.

        The teacher, and what else `followed` returns, stays as it was where that goes wrong.
        """

        def slope_of() -> tuple[Tensor, Slope]:
            targets = self.targets(context, stored)
            loss = self.loss(self._view_logits(context, stored), targets, context).value
            return loss, context.student.slope(loss)

        update = slots.learn_from_memory(context, stored, logits, slope_of, self.descent, self.steps)
        return slots.keep_if_fine(update, context.memory, self.followed(context))

    def targets(self, context: Context, stored: Batch) -> Targets:
        """The teacher's logits for the memory, by statistics that the memory joins first.

        64 samples have the share `norm_momentum` in the statistics, fewer have less
        (`running_statistics`).
        """
        momentum = 1 - (1 - self.norm_momentum) ** (REFERENCE_BATCH / _UPDATE)
        with torch.no_grad(), context.student.with_values(part(context.memory, TEACHER)):
            return {TAUGHT: context.student.on_running_statistics(stored, momentum)[0]}

    def followed(self, context: Context) -> dict[str, Tensor]:
        """The memory that follows the student's steps: the teacher."""
        return teacher_after(context, self.decay)

    def _view_logits(self, context: Context, stored: Batch) -> Tensor:
        """The student's logits for a view of each image in the memory, by the statistics as they are now."""
        student = context.student
        draws = context.rand_like(torch.empty(self.capacity, WEAK_DRAWS, device=student.device))
        tile = context.rand_like(torch.empty(TILE, device=student.device))

        def view(images: Tensor) -> Tensor:
            # Numbers are drawn for all slots, taken or not.
            return weak_views(images, draws[: len(images)], tile=tile, mirrored=self.mirrored)

        return student.on_running_statistics(stored.change(view), momentum=0.0)[0]


def teacher_after(context: Context, decay: float | Tensor) -> dict[str, Tensor]:
    """The memory of the teacher after it has followed the student."""
    return prefixed(TEACHER, moving_average(part(context.memory, TEACHER), context.student.learned, decay))


class Offer(NamedTuple):
    """The samples of a batch that a memory is offered.

    Attributes:
        samples: their tensors by name, as they came.
        classes: the classes predicted.
        nats: the entropies.
        good: whether the logits are finite.
        num_classes: the number of classes.
    """

    samples: dict[str, Tensor]
    classes: Tensor
    nats: Tensor
    good: Tensor
    num_classes: int


def free_categories(capacity: int, like: Tensor) -> dict[str, Tensor]:
    """A memory without samples: the class, the age and the entropy in each slot, as `like`."""
    levels = like.new_zeros(capacity)
    return {**slots.free(capacity, like.device), _AGES: levels.long(), _NATS: levels}


def offering(context: Context, logits: Tensor) -> Callable[[Memory, Tensor], dict[str, Tensor]]:
    """A function that offers the samples of a batch, of all processes, to a memory (`join_memory`)."""
    samples = slots.storable(context.memory, context.batch, context.student.gather)
    good = logits.isfinite().all(1)
    wide = torch.where(good.unsqueeze(1), at_least_single(logits.detach()), 0.0)
    offer = Offer(samples, wide.argmax(1), nats(wide), good, logits.shape[1])
    return lambda memory, inside: join_memory(memory, offer, inside)


def join_memory(stored: Memory, offer: Offer, inside: Tensor) -> dict[str, Tensor]:
    """The memory after the good samples of an offer that are `inside` were offered to it, one by one.

    A sample of class k, entropy u and age 0 has the score 1 / (1 + exp(−age / N)) + u / ln C, N the number of
    slots. While its class has fewer than N / C samples it takes a free slot, or, without any, that of the
    highest score among the classes with most samples; else that of the highest score in its own class.
    It takes the slot of another sample only if that has a higher score than itself. Then all samples are one
    older (Yuan et al., CVPR 2023). All on the device, some twenty kernels for each sample.

    With more classes than slots N / C is below 1, and a class without samples has fewer: each class has at
    most one sample, and one of a new class takes the slot of the highest score of all.
    """
    held = _Slots(stored[SLOT_CLASSES], stored[_AGES], stored[_NATS])
    taker = torch.full_like(held.classes, -1)
    places = torch.arange(len(taker), device=taker.device)
    for row, enters in enumerate((offer.good & inside).unbind()):
        if host_knows(enters) is False:
            continue
        came, level = offer.classes[row], offer.nats[row].to(held.nats)
        slot, finds = held.slot_for(came, level, offer.num_classes)
        taken = (places == slot) & finds & enters
        classes = torch.where(taken, came, held.classes)
        ages = torch.where(taken, 0, held.ages) + enters * (classes >= 0)
        held = _Slots(classes, ages, torch.where(taken, level, held.nats))
        taker = torch.where(taken, row, taker)
    news = {SLOT_CLASSES: held.classes, _AGES: held.ages, _NATS: held.nats}
    return {**news, **slots.placed_samples(stored, offer.samples, taker)}


def timeliness(stored: Memory, *, whole: bool) -> Tensor:
    """The weight 1 / (1 + exp(age / N)) of each sample in the memory; `whole`: of every slot, free or not."""
    weights = torch.sigmoid(-stored[_AGES] / len(stored[_AGES]))
    return weights if whole else weights[stored[SLOT_CLASSES] >= 0]


class _Slots(NamedTuple):
    """The class (-1: free), the age and the entropy in each slot."""

    classes: Tensor
    ages: Tensor
    nats: Tensor

    def slot_for(self, came: Tensor, level: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """The slot for a sample of a class and an entropy, and whether it may take it."""
        filled, own = self.classes >= 0, self.classes == came
        most = math.log(max(num_classes, 2))  # a single class has no entropy
        scores = torch.sigmoid(self.ages / len(self.ages)) + self.nats / most
        score = 0.5 + level / most
        sizes = ((self.classes == self.classes.unsqueeze(1)) & filled).sum(1)
        below = own.sum() < len(self.classes) / num_classes
        losers = torch.where(below, filled & (sizes == sizes.amax()), own)
        highest, slot = torch.where(losers, scores, -math.inf).max(0)
        room = below & ~filled.all()
        return torch.where(room, (~filled).long().argmax(), slot), room | (highest > score)
