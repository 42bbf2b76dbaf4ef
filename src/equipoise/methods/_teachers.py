"""Teachers: a second set of the weights that learn, kept in memory, which answers in the student's place."""

from functools import partial

import torch
from torch import Tensor

from equipoise.core.method import Context
from equipoise.functional import at_least_single
from equipoise.methods._views import TILE, WEAK_DRAWS, views_of, weak_views
from equipoise.network.named_tensors import prefixed
from equipoise.network.student import Student

TEACHER = "teacher."
"""Prefix of the names of memory that holds the teacher's weights."""

_ROWS_AT_ONCE = 256


def first_teacher(student: Student) -> dict[str, Tensor]:
    """The teacher before the first batch, as memory: the weights that learn, at least in single precision."""
    return prefixed(TEACHER, {n: at_least_single(weight.detach()) for n, weight in student.learned.items()})


def view_logits(context: Context, draws: Tensor, tile: Tensor, *, mirrored: bool) -> Tensor:
    """Logits averaged over random views of each image, some 256 views in a forward; nothing moves.

    They are normalised by the statistics of the views in the forward; those of a lone sample, which has none,
    by the running ones.

    Args:
        context: the step's.
        draws: uniform random numbers (N, views, WEAK_DRAWS).
        tile: uniform random numbers for the noise.
        mirrored: whether half of the views are mirrored left to right.
    """
    student, batch = context.student, context.batch
    rows, total = student.all_rows(batch), torch.zeros((), device=student.device)
    forward = partial(student.on_batch_statistics, momentum=0.0) if rows > 1 else student.frozen
    view = partial(weak_views, tile=tile, mirrored=mirrored)
    for some in draws.split(max(1, _ROWS_AT_ONCE // rows), 1):
        with student.with_views(some.shape[1]):
            logits = forward(views_of(batch, some, view))
        total = total + logits.unflatten(0, (-1, some.shape[1])).sum(1)
    return total / draws.shape[1]


def draw_views(context: Context, views: int) -> tuple[Tensor, Tensor]:
    """The random numbers of `view_logits`."""
    draws = context.rand(views, WEAK_DRAWS)
    return draws, context.rand_like(draws.new_empty(TILE))


def restore_some(context: Context, probability: float) -> None:
    """Give each weight that learns its source value back with a probability; the draws are the host's."""
    student = context.student
    source = student.source_values(student.learned)
    with torch.no_grad():
        for name, weight in student.learned.items():
            chosen = context.rand_like(at_least_single(weight)) < probability
            weight.copy_(torch.where(chosen, source[name].to(weight, non_blocking=True), weight))
