"""Steps of RoTTA that PeTTA shares: a memory of the stream, robust statistics, a teacher that follows."""

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.core.method import Context, Update
from equipoise.methods._averages import moving_average
from equipoise.methods._category_memory import join_memory, offer_of
from equipoise.methods._stored_samples import SLOT_CLASSES, windows
from equipoise.methods._teachers import TEACHER
from equipoise.methods._views import TILE, WEAK_DRAWS, weak_views
from equipoise.network.batch import Batch
from equipoise.network.flags import all_hold
from equipoise.network.following import REFERENCE_BATCH
from equipoise.network.named_tensors import part, prefixed

_UPDATE = 64  # samples that the share of a memory in the statistics is for: the authors' memory


def memory_step(
    context: Context, logits: Tensor, every: int, learn: Callable[[Context, Tensor], Update]
) -> Update:
    """Offer the samples of a batch to the memory, and learn from it after each `every` samples."""
    offer, memory, update = offer_of(context, logits), dict(context.memory), Update(logits)
    for inside, due in windows(context, len(logits), every):
        memory |= join_memory(memory, offer, inside)
        if due:
            update = learn(context._replace(memory=memory), logits)
            memory |= update.memory
    return update._replace(memory=memory)


def robust_logits(context: Context, stored: Batch, norm_momentum: float, *, mirrored: bool) -> Tensor:
    """The student's logits for a view of each image in the memory, by statistics that the views join first.

    64 views have the share `norm_momentum` in the statistics, fewer have less (`network.following`).
    """
    student = context.student
    capacity = len(context.memory[SLOT_CLASSES])  # draws are for all slots, taken or not
    draws = context.rand_like(torch.empty(capacity, WEAK_DRAWS, device=student.device))[: stored.rows]
    tile = context.rand_like(torch.empty(TILE, device=student.device))
    views = stored.change(lambda images: weak_views(images, draws, tile=tile, mirrored=mirrored))
    momentum = 1 - (1 - norm_momentum) ** (REFERENCE_BATCH / _UPDATE)
    return student.on_running_statistics(views, momentum)[0]


def with_teacher(context: Context, update: Update, decay: float | Tensor) -> Update:
    """An update after which the teacher has followed the student, unless it went wrong or took no step."""
    if not update.checks:
        return update
    old, fine = part(context.memory, TEACHER), all_hold(update.checks)
    news = moving_average(old, context.student.learned, decay)
    kept = {name: torch.where(fine, new, old[name]) for name, new in news.items()}
    return update._replace(memory={**update.memory, **prefixed(TEACHER, kept)})
