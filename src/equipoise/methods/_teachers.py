"""Teachers: a second set of the weights that learn, kept in memory, which answers in the student's place."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import GradientMethod
from equipoise.core.method import Answer, Context, Memory
from equipoise.functional import at_least_single, soft_cross_entropy
from equipoise.methods._views import ROWS_AT_ONCE, TILE, WEAK_DRAWS, views_of, weak_views
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.student import Student

TEACHER = "teacher."
"""Prefix of the names of memory that holds the teacher's weights."""


@dataclass(frozen=True, kw_only=True)
class TaughtMethod(GradientMethod):
    """A gradient method whose teacher, an average of the weights that learn, gives the answers."""

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, and the teacher, at least in single precision."""
        teacher = {name: at_least_single(weight.detach()) for name, weight in student.learned.items()}
        return {**super().initial(student, source), **prefixed(TEACHER, teacher)}

    def answer(self, context: Context) -> Answer:
        """The teacher's logits in eval mode."""
        with context.student.with_values(part(context.memory, TEACHER)):
            return Answer(context.student.frozen(context.batch))

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """A copy of the network with the teacher's weights."""
        return student.export(part(memory, TEACHER))


def against(logits: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy of each answer against a teacher's, both as logits."""
    return soft_cross_entropy(logits, at_least_single(teacher).softmax(1))


def confidence_limit(source: SourceStatistics | None) -> Tensor:
    """The 5 % quantile of the confidence on source samples, minus .05; ∞ where it was not measured."""
    measured = torch.zeros(0) if source is None else source.confidences
    if not len(measured):
        return torch.tensor(torch.inf)
    below, share = divmod(0.05 * (len(measured) - 1), 1)  # torch.quantile reads its argument on the host
    above = min(int(below) + 1, len(measured) - 1)
    return torch.lerp(measured[int(below)], measured[above], share) - 0.05


def view_targets(context: Context, views: int, unsure: Tensor, *, mirrored: bool) -> Tensor:
    """The logits, averaged over views where the flag `unsure` is true; a captured step computes both."""
    draws, tile = _drawn_views(context, views)
    needed = bool(unsure) if context.host_looks else None
    plain = None if needed else context.student.on_batch_statistics(context.batch, momentum=0.0)
    if plain is not None and needed is False:
        return plain
    averaged = _view_logits(context, draws, tile, mirrored=mirrored)
    return averaged if plain is None else torch.where(unsure, averaged, plain)


def _drawn_views(context: Context, views: int) -> tuple[Tensor, Tensor]:
    """The random numbers of `_view_logits`."""
    draws = context.rand(views, WEAK_DRAWS)
    return draws, context.rand_like(draws.new_empty(TILE))


def _view_logits(context: Context, draws: Tensor, tile: Tensor, *, mirrored: bool) -> Tensor:
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
    for some in draws.split(max(1, ROWS_AT_ONCE // rows), 1):
        with student.with_views(some.shape[1]):
            logits = forward(views_of(batch, some, view))
        total = total + logits.unflatten(0, (-1, some.shape[1])).sum(1)
    return total / draws.shape[1]


def restore_some(context: Context, probability: float) -> None:
    """Give each weight that learns its source value back with a probability; the draws are the host's."""
    if probability == 0:
        return
    student = context.student
    source = student.source_values(student.learned)
    with torch.no_grad():
        for name, weight in student.learned.items():
            chosen = context.rand_like(at_least_single(weight)) < probability
            weight.copy_(torch.where(chosen, source[name].to(weight, non_blocking=True), weight))
