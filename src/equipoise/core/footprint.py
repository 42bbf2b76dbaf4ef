"""The memory that an adapter takes, in elements and bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from equipoise.core.method import SAMPLES, SUPPORTS
from equipoise.core.step import Responder
from equipoise.network.named_tensors import part


@dataclass(frozen=True)
class Amount:
    """An element count and its size in bytes."""

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
    """The tensors that an adapter holds now; a memory is counted whole once a batch has made it.

    Attributes:
        parameters: the student's parameters and those of the source model that are held a second time.
        learned: the parameters that learn.
        buffers: running statistics, an optimiser's state, averages, constants, temperatures.
        supports: T3A's supports, made from observations: their features, or sums of them.
        observations: samples as they came.
        samples: how many of those there is room for.
        stores_observations: whether samples are kept as they came: now, or by this method from its first
            batch on.
        paper: the numbers that the paper's appendix counts as the method's overhead: both networks where the
            source model is asked for every batch (DEC), else the parameters that learn (TENT, ETA), and to
            that the supports (T3A: M times the head) and the observations (SoTTA: N times a sample).
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


def measure_footprint(respond: Responder) -> Footprint:
    """Count the tensors that an adapter holds, on whatever device."""
    student, memory = respond.student, respond.state.memory
    second = student.source_copy.held()
    weights = {name for name, _ in student.model.named_parameters()}
    stored, supports = part(memory, SAMPLES).values(), part(memory, SUPPORTS).values()
    rest = [tensor for name, tensor in memory.items() if not name.startswith((SAMPLES, SUPPORTS))]
    rest += [*respond.constants.values(), *respond.state.temperature.values()]
    rest += [] if respond.state.random.state is None else [respond.state.random.state]
    rest += respond.state.cleared()
    parameters = Amount.of(student.model.parameters()) + Amount.of(
        tensor for name, tensor in second.items() if name in weights
    )
    buffers = Amount.of([*student.model.buffers(), *rest]) + Amount.of(
        tensor for name, tensor in second.items() if name not in weights
    )
    learned, held, observed = Amount.of(student.learned.values()), Amount.of(supports), Amount.of(stored)
    base = parameters if respond.asks_source else learned
    return Footprint(
        parameters=parameters,
        learned=learned,
        buffers=buffers,
        supports=held,
        observations=observed,
        samples=max((len(tensor) for tensor in stored), default=0),
        stores_observations=respond.method.stores_samples or bool(stored),
        paper=base.numbers + held.numbers + observed.numbers,
    )
