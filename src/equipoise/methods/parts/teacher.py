"""Averages of weights, and teachers: averages of the student's weights that answer in its place."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import GradientMethod
from equipoise.core.method import Answer, Context, Memory
from equipoise.core.student import Student
from equipoise.functional import at_least_single
from equipoise.network.named_tensors import part, prefixed

TEACHER = "teacher."
"""Prefix of the names of memory that holds the teacher's weights."""


def moving_average(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], decay: float | Tensor
) -> dict[str, Tensor]:
    """The average after new weights: decay · old + (1 − decay) · new, at least in single precision.

    Args:
        old: the average so far, by name.
        new: the weights that enter it; entries that the average has not are left out.
        decay: the share of the old average, as a number or a 0-d tensor.
    """
    averaged = {}
    for name, value in old.items():
        wide = at_least_single(value)
        share = decay.to(wide) if isinstance(decay, Tensor) else decay
        averaged[name] = torch.lerp(new[name].detach().to(wide), wide, share)
    return averaged


@dataclass(frozen=True, kw_only=True)
class TeacherMethod(GradientMethod):
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
