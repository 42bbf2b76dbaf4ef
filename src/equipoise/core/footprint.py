"""What an adapter holds in memory, in numbers and bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from equipoise.core.learner import Learner
from equipoise.network.named_tensors import SAMPLES, SUPPORTS, part


@dataclass(frozen=True)
class Amount:
    """So many numbers in so many bytes."""

    numbers: int
    bytes: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Amount":
        """The amount in some tensors."""
        listed = list(tensors)
        return cls(sum(t.numel() for t in listed), sum(t.numel() * t.element_size() for t in listed))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.numbers + other.numbers, self.bytes + other.bytes)


@dataclass(frozen=True)
class Footprint:
    """What an adapter holds now; a memory is counted whole from the batch that made it, filled or not.

    Attributes:
        parameters: the student's parameters and those of the source model that are held a second time.
        learned: the parameters that learn.
        buffers: running statistics, and what is kept besides: an optimiser's state, averages, temperatures.
        supports: T3A's supports, made from observations: their features, or sums of them.
        observations: samples as they came.
        samples: how many of those there is room for.
        stores_observations: whether samples are kept as they came: now, or by this method from its first
            batch on.
        paper: the numbers that the paper's appendix counts as the method's overhead: both networks where the
            source model is asked for every batch (DEC), else what is learned (TENT, ETA), and to that the
            supports (T3A: M times the head) and the observations (SoTTA: N times a sample).
        total: everything held.
    """

    parameters: Amount
    learned: Amount
    buffers: Amount
    supports: Amount
    observations: Amount
    samples: int
    stores_observations: bool
    paper: int

    @property
    def total(self) -> Amount:
        """Everything held."""
        return self.parameters + self.buffers + self.supports + self.observations


def measure_footprint(learner: Learner, temperature: Iterable[Tensor]) -> Footprint:
    """Count what a learner and its temperature hold, on whatever device."""
    second = learner.teacher.held()
    weights = {name for name, _ in learner.student.named_parameters()}
    kept = learner.kept
    stored, supports = part(kept, SAMPLES).values(), part(kept, SUPPORTS).values()
    rest = [tensor for name, tensor in kept.items() if not name.startswith((SAMPLES, SUPPORTS))]
    own = [buffer for _, buffer in learner.named_buffers(recurse=False)]
    parameters = Amount.of(learner.student.parameters()) + Amount.of(
        tensor for name, tensor in second.items() if name in weights
    )
    buffers = Amount.of([*learner.student.buffers(), *own, *rest, *temperature]) + Amount.of(
        tensor for name, tensor in second.items() if name not in weights
    )
    learned, held, observed = Amount.of(learner.learned.values()), Amount.of(supports), Amount.of(stored)
    base = parameters if learner.asks_source else learned
    return Footprint(
        parameters=parameters,
        learned=learned,
        buffers=buffers,
        supports=held,
        observations=observed,
        samples=max((len(tensor) for tensor in stored), default=0),
        stores_observations=learner.stores_observations or bool(stored),
        paper=base.numbers + held.numbers + observed.numbers,
    )
