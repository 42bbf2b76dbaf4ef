"""The contract of a method: frozen options, and functions of a context.

A method is a frozen dataclass that derives from `Method`. Its fields are its options; it holds no tensors.
`step` answers a batch and returns an `Update`; everything else has a default. Undo, reset, saving, moves to
another device, CUDA graphs and several processes are the business of `core`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from types import EllipsisType, MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import SourceView, Tempering
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import StateError
from equipoise.network.batch import Batch, images_among, not_one_image
from equipoise.network.parameters import Parameters
from equipoise.network.source_copy import Residence
from equipoise.options import check_options

Memory: TypeAlias = Mapping[str, Tensor]
"""Tensors that a method keeps between batches, by name; read-only."""

Counts: TypeAlias = Mapping[str, int]
"""Integers that the host counts from batch to batch, by name."""

Size: TypeAlias = int | str | EllipsisType | None
Shapes: TypeAlias = Mapping[str, tuple[Size, ...]]
"""The shapes of tensors by patterns of their names.

A size is a number, the name of an option, "<=" and such a name, "classes" (of the model), or None for any;
a last "..." is any further sizes. What has one name has one size in all tensors.
"""

NO_TENSORS: Memory = MappingProxyType({})

SAMPLES = "samples."
"""Prefix of the names of memory that holds samples as they came, a row each."""

SUPPORTS = "supports."
"""Prefix of the names of memory that holds features of samples, or sums of them."""


class Plan(NamedTuple):
    """The decisions of the host about a batch, made from shapes and counts before anything runs.

    Attributes:
        course: a hashable key: batches with equal shapes and equal course run the same kernels and may share
            a CUDA graph.
        counts: the method's `counters` after this batch.
        idle: the reason why nothing is going to be learned; empty otherwise.
        captured: whether this step may be captured; false while memory still changes names or shapes.
        reset_first: whether to go back to the source model, and to the first memory and counters, before this
            batch, which is then planned again; such a step is never captured.
    """

    course: tuple[Any, ...] = ()
    counts: Counts = MappingProxyType({})
    idle: str = ""
    captured: bool = True
    reset_first: bool = False


class Context(NamedTuple):
    """The arguments of a step.

    Attributes:
        student: the network that adapts: its forwards and gradient steps.
        batch: the inputs; all samples are finite.
        memory: the method's memory, read-only.
        view: the source model's answers, for a method that `asks_source`.
        plan: `Method.plan` of this batch.
        counts: the method's `counters` before this batch, as 0-d tensors.
        constants: `Method.constants`, on the student's device.
        source: the statistics of the source domain, if there are any.
        novelty: how unlike source samples the inputs are, (N) for the samples of all processes
            (`calibration.novelty`); None where that was not measured, and outside of a step.
        allowed: a flag on the device, false where nothing may be learned from the batch, for
            `student.descend`; None outside of a step.
        host_looks: whether the host may read tensors; not in a step that is captured.
        uniform: draws random numbers of a shape, the same on all processes: for `rand` and `rand_like`.
    """

    student: Student
    batch: Batch
    memory: Memory
    view: SourceView | None = None
    plan: Plan = Plan()
    counts: Memory = NO_TENSORS
    constants: Memory = NO_TENSORS
    source: SourceStatistics | None = None
    novelty: Tensor | None = None
    allowed: Tensor | None = None
    host_looks: bool = True
    uniform: Callable[[tuple[int, ...]], Tensor] | None = None

    def rand(self, *shape: int) -> Tensor:
        """Uniform random numbers from 0 to 1, (N, *shape): a row for each sample of the batch.

        Repeatable: reset, undo, save and load, CUDA graphs and several processes keep track of the generator,
        which is the CPU's (the same numbers on every device, at some 5 ns each).
        """
        student, rows = self.student, self.batch.rows
        (drawn,) = student.local(self._drawn((student.all_rows(self.batch), *shape)))
        return drawn if len(drawn) == rows else torch.zeros(rows, *shape, device=drawn.device)

    def rand_like(self, weight: Tensor) -> Tensor:
        """Uniform random numbers of the shape and type of a weight, the same on all processes."""
        return self._drawn(tuple(weight.shape)).to(weight)

    def _drawn(self, shape: tuple[int, ...]) -> Tensor:
        if self.uniform is None:
            raise RuntimeError("random numbers are drawn in `step` only")
        return self.uniform(shape)

    def randn(self, *shape: int) -> Tensor:
        """Normal random numbers, as `rand`."""
        return torch.erfinv((2 * self.rand(*shape) - 1).clamp(-1 + 1e-6, 1 - 1e-6)) * 2**0.5


class Answer(NamedTuple):
    """The answers to a batch that nothing is learned from.

    Attributes:
        logits: the answers before tempering.
        source_logits: the source model's logits for the batch, if they were computed anyway.
    """

    logits: Tensor
    source_logits: Tensor | None = None


class Update(NamedTuple):
    """The result of a step; where a check does not hold, everything is as before the batch.

    Attributes:
        logits: the answers before tempering, for all rows that a forward of the student returns.
        memory: new values of memory; entries not named stay as they are.
        used: the number of samples learned from.
        loss: of the gradient step, if there was one.
        checks: conditions for keeping the step (`verdict.Check`).
        idle: the reason why nothing is learned; empty otherwise.
        source_logits: the source model's logits for the batch, if the step computed them anyway.
    """

    logits: Tensor
    memory: Memory = NO_TENSORS
    used: int | Tensor = 0
    loss: Tensor | None = None
    checks: tuple[Check, ...] = ()
    idle: str = ""
    source_logits: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to adapt; a subclass is a frozen dataclass whose fields are its options.

    Attributes:
        name: the name in the registry.
        needs_source: whether the method needs source statistics, tempered or not.
        needs_fisher: whether the source statistics must hold the Fisher diagonal.
        needs_features: whether the source statistics must hold moments of the linear head's inputs.
        needs_images: whether `step` makes views of images; a batch without any is refused (`check_batch`).
        asks_source: whether `step` needs the source model's answers to each batch.
        moves_statistics: whether running statistics of normalisation layers follow the stream.
        stores_samples: whether samples are kept as they came.
        uses_prototypes: whether class prototypes help the model's linear head, or replace it.
        heeds_novelty: whether statistics and prototypes move only as far as rows of a table are new.
        counters: names of the integers that `plan` counts on the host, from 0, each with the option that it
            stays below, or None.
        arrives: name patterns and shapes of memory that `initial` lacks and a later step creates.
        default_tempering: the tempering; None: "rehearsed" where the statistics hold a rehearsal, or "none".
        default_source_copy: where the source model is kept.
        measuring: the call that makes the source statistics that the method needs.
    """

    name: ClassVar[str]
    needs_source: ClassVar[bool] = False
    needs_fisher: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    needs_images: ClassVar[bool] = False
    asks_source: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = True
    stores_samples: ClassVar[bool] = False
    uses_prototypes: ClassVar[bool] = False
    heeds_novelty: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, str | None]] = {}
    arrives: ClassVar[Shapes] = {}
    default_tempering: ClassVar[Tempering | None] = "none"
    default_source_copy: ClassVar[Residence] = "swapped"
    measuring: ClassVar[str] = "equipoise.SourceStatistics.measure(model, source_loader)"

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def step(self, context: Context) -> Update:
        """Answer a batch and learn from it."""

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The memory before the first batch."""
        return {}

    def answer(self, context: Context) -> Answer:
        """Answer a batch without learning."""
        return Answer(context.student.frozen(context.batch))

    def plan(self, context: Context) -> Plan:
        """Decide on the host, from shapes and counts, how `step` is going to run."""
        return Plan()

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """A plain module that answers as `answer` does."""
        return student.export()

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """Tensors that never change, made once for each device."""
        return {}

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Raise ModelError, OptionError or SourceError if the method cannot adapt this model."""
        return

    def check_batch(self, batch: Batch) -> None:
        """Raise BatchError if `step` makes views of images, and not exactly one input is images."""
        if self.needs_images and len(images_among(batch.samples())) != 1:
            raise not_one_image(self.name, batch.samples())

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Raise StateError if the memory or the counters of a state do not fit the options or the model.

        Here by what `counters` and `arrives` declare; a method adds what they cannot tell.
        """
        for name, below in self.counters.items():
            if below is not None and not 0 <= counts[name] < (most := getattr(self, below)):
                raise StateError(f"expected fewer than {below}={most} samples {name}, got {counts[name]}")
        sizes: dict[str, int] = {} if student.classes is None else {"classes": student.classes}
        for pattern, shape in self.arrives.items():
            for name in (each for each in memory if fnmatchcase(each, pattern)):
                if not self._fits(came := tuple(memory[name].shape), shape, sizes):
                    wanted = [self._told(size, sizes) for size in shape]
                    raise StateError(f"{name}: expected a tensor of ({', '.join(wanted)}), got {came}")

    def _fits(self, came: tuple[int, ...], shape: tuple[Size, ...], sizes: dict[str, int]) -> bool:
        """Whether a tensor has a shape; `sizes` are those that names have in the tensors before it."""
        firm = shape[:-1] if shape[-1:] == (...,) else shape
        if len(came) < len(firm) or (len(came) > len(firm) and firm is shape):
            return False
        for size, wanted in zip(came, firm, strict=False):
            if isinstance(wanted, str):
                most = getattr(self, wanted.removeprefix("<="), size)
                fits = size == most or (wanted.startswith("<=") and 0 < size < most)
                if not fits or sizes.setdefault(wanted, size) != size:
                    return False
            elif wanted not in (None, size):
                return False
        return True

    def _told(self, size: Size, sizes: Mapping[str, int]) -> str:
        """A size of a shape in words."""
        if not isinstance(size, str):
            return "..." if size is ... else str(size or "any")
        known = getattr(self, size.removeprefix("<="), sizes.get(size, ""))
        return f"{size}={known}"

    @property
    def learns(self) -> Parameters | None:
        """The parameters that learn; None: none do."""
        return None

    @property
    def compares(self) -> bool:
        """Whether a rehearsed adapter may answer by the source model where that is estimated to be better.

        A method that does has an option `falls_back` to turn it off.
        """
        return False

    @property
    def random_seed(self) -> int:
        """The seed of `Context.rand`: the option `seed`, where the method has one."""
        return int(getattr(self, "seed", 0))


def option_values(method: Method) -> dict[str, Any]:
    """The options of a method by name, as plain numbers, names, lists and dicts of them."""
    return {field.name: getattr(method, field.name) for field in fields(method)}
