"""CMF: ROID's losses, with weights filtered as the states of a process that is observed in noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Context
from equipoise.core.student import Student
from equipoise.methods.parts.teacher import moving_average
from equipoise.methods.roid import SOURCE, Roid
from equipoise.network.named_tensors import copy_unless, part, prefixed
from equipoise.registry import register

_HIDDEN, _VARIANCE = "hidden.", "variance"
_ALPHA, _GAMMA = 0.99, 0.99  # the authors'
_NOISE, _WEIGHTS = 0.005, 38400  # the authors' q for the layer norms of ViT-B, and the weights in these
_LEAST, _ALL = 0.89, 0.9999  # β below the first is that, above the second 1


@register
@dataclass(frozen=True, kw_only=True)
class Cmf(Roid):
    """Continual momentum filtering (Lee and Chang, ICLR 2024), of models on images.

    The losses and the steps are ROID's. In place of its average with the source weights, a Kalman filter
    estimates hidden weights φ, of variance s, that drift from the source's and are observed as θ. With n the
    number of weights that learn, q = .005 · n / 38400 and r = 1 − q, after every step

        φ ← .99 φ + .01 θ_source,   s ← .99² s + q,
        β = r / (s + r), at least .89, and 1 above .9999,
        φ ← β φ + (1 − β) θ,   s ← β s,   θ ← .99 θ + .01 φ,

    starting with φ = θ_source and s = 0. Two forwards and a backward a batch.

    Deviations: those of ROID: no correction by the prior unless it is asked for, and all images in the second
    forward, not only those kept. A reset forgets s, which the authors' code keeps.
    """

    name = "cmf"

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, the hidden weights and their variance."""
        hidden = moving_average(student.learned, student.learned, 1.0)
        nothing = next(iter(hidden.values())).new_zeros(())
        return {**super().initial(student, source), **prefixed(_HIDDEN, hidden), _VARIANCE: nothing}

    def filter_weights(self, context: Context, taken: Tensor) -> dict[str, Tensor]:
        """Update the hidden weights and bring the weights nearer to them, if a step was taken."""
        learned, memory = context.student.learned, context.memory
        noise = _NOISE * sum(weight.numel() for weight in learned.values()) / _WEIGHTS
        before, variance = part(memory, _HIDDEN), memory[_VARIANCE]
        hidden = moving_average(before, part(context.constants, SOURCE), _ALPHA)
        predicted = _ALPHA**2 * variance + noise
        gain = ((1 - noise) / (predicted + 1 - noise)).clamp(min=_LEAST)
        gain = torch.where(gain > _ALL, 1.0, gain)
        hidden = moving_average(hidden, learned, gain)
        copy_unless(~taken, learned, moving_average(learned, hidden, _GAMMA))
        news = {**prefixed(_HIDDEN, hidden), _VARIANCE: gain * predicted}
        return {name: torch.where(taken, new, memory[name]) for name, new in news.items()}
