"""A method that leaves the work to another one, and changes some of it."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Answer, Context, Counts, Memory, Method, Plan, Update
from equipoise.network.batch import Batch
from equipoise.network.parameters import Parameters
from equipoise.network.student import Student

_FACTS = (
    *("needs_source", "needs_fisher", "needs_features", "needs_images", "asks_source", "moves_statistics"),
    *("stores_samples", "uses_prototypes", "heeds_novelty", "counters", "arrives"),
    *("default_tempering", "default_source_copy", "measuring"),
)


@dataclass(frozen=True, kw_only=True)
class DelegatingMethod(Method):
    """A method whose facts, memory and steps are those of another one, `inner`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for fact in _FACTS:
            object.__setattr__(self, fact, getattr(self.inner, fact))

    @property
    @abstractmethod
    def inner(self) -> Method:
        """The method that does the work."""

    def plan(self, context: Context) -> Plan:
        """Plan as the inner method does."""
        return self.inner.plan(context)

    def step(self, context: Context) -> Update:
        """Answer and learn as the inner method does."""
        return self.inner.step(context)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The inner method's memory."""
        return self.inner.initial(student, source)

    def answer(self, context: Context) -> Answer:
        """Answer as the inner method does."""
        return self.inner.answer(context)

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """The inner method's module."""
        return self.inner.export(student, memory)

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The inner method's constants."""
        return self.inner.constants(student, source)

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse what the inner method refuses."""
        self.inner.check_model(student, source)

    def check_batch(self, batch: Batch) -> None:
        """Refuse what the inner method refuses."""
        self.inner.check_batch(batch)

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse what the inner method refuses."""
        self.inner.check_memory(student, memory, counts)

    @property
    def learns(self) -> Parameters | None:
        """The parameters that learn."""
        return self.inner.learns

    @property
    def compares(self) -> bool:
        """Whether the inner method lets the source model answer."""
        return self.inner.compares

    @property
    def random_seed(self) -> int:
        """The inner method's seed."""
        return self.inner.random_seed
