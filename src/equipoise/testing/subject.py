"""The subject of a check, its steps as a CUDA graph holds them, and comparisons that explain a difference."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Context, Method, Plan
from equipoise.core.record import Record
from equipoise.core.step import Responder
from equipoise.core.verdict import no_free_reads
from equipoise.errors import ConformanceError
from equipoise.factory import create
from equipoise.network.batch import Batch
from equipoise.testing.models import make, rehearsed

OWN_MEMORY = "does the method keep something that is not in `Update.memory`, or draw without `context.rand`?"
"""The usual cause of answers that differ."""


@dataclass(frozen=True)
class Subject:
    """A registered method with options, and the kind of small model that it is checked on."""

    method: str
    options: Mapping[str, Any]
    kind: str

    def create(self, model: nn.Module, source: SourceStatistics) -> Adapter:
        """An adapter of a model; with a rehearsal where the options ask for one."""
        if self.options.get("tempering") == "rehearsed":
            others = {name: value for name, value in self.options.items() if name != "tempering"}
            source = rehearsed(source, self.method, **others)
        return create(self.method, model, source, **self.options)

    def build(self) -> tuple[Adapter, nn.Module]:
        """An adapter of a small model, and the model."""
        model, source = make(self.kind)
        return self.create(model, source), model

    def adapter(self) -> Adapter:
        """An adapter of a small model."""
        return self.build()[0]


def snapshot(adapter: Adapter) -> dict[str, Tensor]:
    """Copies of everything in an adapter that could change: its state, and every tensor of its student."""
    state: dict[str, Tensor] = dict(adapter.state_dict())
    state.update({f"student.{k}": v.detach().clone() for k, v in adapter.student.state_dict().items()})
    return state


def expect(holds: bool, otherwise: str) -> None:
    """Raise ConformanceError with a message unless a condition holds."""
    if not holds:
        raise ConformanceError(otherwise)


def expect_logits(logits: Tensor, shape: tuple[int, int], dtype: torch.dtype, call: str) -> None:
    """Raise unless the result of a call is finite logits of a shape and type, outside of autograd."""
    expect(isinstance(logits, Tensor), f"{call}: expected a tensor of logits, got {type(logits).__name__}")
    expect(
        logits.shape == shape, f"{call}: expected logits of shape {shape}, got shape {tuple(logits.shape)}"
    )
    expect(logits.dtype == dtype, f"{call}: expected logits of the model's type {dtype}, got {logits.dtype}")
    expect(bool(logits.isfinite().all()), f"{call}: expected finite logits, got some that are not")
    expect(not logits.requires_grad, f"{call}: expected logits that are detached, got some with a gradient")


def expect_equal(expected: Tensor, came: Tensor, otherwise: str, tolerance: float = 0.0) -> None:
    """Raise unless two tensors are equal; the message ends with their difference."""
    difference = difference_of(expected.detach(), came.detach(), tolerance)
    expect(not difference, f"{otherwise} ({difference})")


def expect_same_state(
    expected: Mapping[str, Tensor], came: Mapping[str, Tensor], otherwise: str, tolerance: float = 0.0
) -> None:
    """Raise unless two snapshots are equal; "{}" in the message becomes the parts that differ."""
    found: dict[str, str] = {}
    for name in (*expected, *(name for name in came if name not in expected)):
        if name not in expected or name not in came:
            found.setdefault(part_in_words(name), "in one of the two only")
        elif difference := difference_of(expected[name], came[name], tolerance):
            found.setdefault(part_in_words(name), difference)
    if found:
        first = [f"{part} ({difference})" for part, difference in list(found.items())[:3]]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ConformanceError(otherwise.replace("{}", ", ".join(first) + more))


def part_in_words(name: str) -> str:
    """The name of an entry of a snapshot, as the author of a method knows it."""
    if name.startswith("student."):
        return f"'{name.removeprefix('student.')}' of the model"
    _, _, rest = name.partition(".")
    kind, _, own = rest.partition(".")
    words = {
        "model": f"'{own}' of the model",
        "memory": f"memory '{own}'",
        "counts": f"counter '{own}'",
        "temperature": f"'{own}' of the temper",
        "random": "the state of the random generator",
    }
    return words.get(kind, name)


def difference_of(expected: Tensor, came: Tensor, tolerance: float = 0.0) -> str:
    """The difference of two tensors in words; empty where there is none."""
    if expected.shape != came.shape:
        return f"expected shape {tuple(expected.shape)}, got {tuple(came.shape)}"
    if expected.dtype != came.dtype:
        return f"expected {expected.dtype}, got {came.dtype}"
    if torch.equal(expected, came):
        return ""
    if not expected.is_floating_point():
        return f"{int((expected != came).sum())} of {expected.numel()} values differ"
    if not bool(came.isfinite().all()):
        return f"{int((~came.isfinite()).sum())} of {came.numel()} values are not finite"
    if tolerance and torch.allclose(expected, came, rtol=1e-5, atol=tolerance):
        return ""
    return f"largest difference {float((expected - came).abs().nan_to_num().max()):.3g}"


def label_last(adapter: Adapter) -> None:
    """Give labels of the last batch to an adapter that takes them: then they are in its state."""
    if adapter.rehearsal is not None and adapter.last is not None:
        adapter.label([0] * adapter.last.samples)


def answers(adapter: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> list[Tensor]:
    """The answers to batches, one after the other."""
    return [adapter(x) for x in batches]


def expect_equal_answers(expected: list[Tensor], came: list[Tensor], otherwise: str) -> None:
    """Raise unless two lists of answers are equal; "{}" in the message becomes the number of the batch."""
    for number, (one, other) in enumerate(zip(expected, came, strict=True), start=1):
        expect_equal(one, other, otherwise.replace("{}", f"batch {number} of the stream"))


_aten = torch.ops.aten
HOST_READS = {
    _aten._local_scalar_dense: "float(), int(), bool(), .item() or `if` of a tensor",
    _aten.item: ".item()",
    _aten.is_nonzero: "`if` of a tensor",
    _aten.nonzero: "nonzero(), or an index that is a mask",
    _aten.nonzero_numpy: "nonzero()",
    _aten.equal: "torch.equal",
    _aten.allclose: "torch.allclose",
    _aten.masked_select: "masked_select, or an index that is a mask",
    _aten.unique_consecutive: "unique_consecutive",
    _aten.unique_dim: "unique",
    _aten._unique: "unique",
    _aten._unique2: "unique",
    _aten.bincount: "bincount",
    _aten.repeat_interleave: "repeat_interleave",
}
"""Operations whose result, or its shape, the host has to wait for, and the Python code that calls them."""

READS_BY_MASK = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
"""Operations that read their indices where these are masks."""


class NoReads:
    """A context that raises ConformanceError where a number on the device would have to come to the host."""

    def __init__(self) -> None:
        self._allowed = False
        self._modes = ExitStack()

    def __enter__(self) -> "NoReads":
        self._modes.enter_context(_Methods(self))
        self._modes.enter_context(_Operations(self))
        return self

    def __exit__(self, *raised: object) -> None:
        self._modes.close()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Allow reads in the block: those of the host's own numbers."""
        before, self._allowed = self._allowed, True
        try:
            yield
        finally:
            self._allowed = before

    def refuse(self, read: str) -> None:
        """Raise unless reads are allowed now."""
        if not self._allowed:
            raise ConformanceError(f"the host reads a tensor: {read}")


class _Operations(TorchDispatchMode):
    """Refuses operations of torch that read."""

    def __init__(self, reads: NoReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in HOST_READS:
            self._reads.refuse(HOST_READS[packet])
        elif packet in READS_BY_MASK and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self._reads.refuse("an index that is a mask")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """Refuses methods of tensors that read memory without an operation."""

    def __init__(self, reads: NoReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            self._reads.refuse(f".{func.__name__}()")
        return func(*args, **(kwargs or {}))


class _Unread:
    """A method whose step may not read tensors; its plan, which is the host's, may."""

    def __init__(self, method: Method, reads: NoReads) -> None:
        self._method, self._reads = method, reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def plan(self, context: Context) -> Plan:
        with self._reads.allowed():
            return self._method.plan(context)


def unread_step(adapter: Adapter, x: Tensor, *, refusing: bool = False) -> tuple[Tensor, Record]:
    """Answer a batch as a captured step does: every decision is the device's, as if the CPU were a GPU.

    `refusing` raises ConformanceError where the host reads a tensor; the method's plan, which is the host's,
    may.
    """
    respond, reads, batch = adapter.responder, NoReads(), Batch.of((x,), {}).learnable()
    if refusing:
        method: Any = _Unread(respond.method, reads)
        respond = Responder(respond.student, method, respond.temper, respond.state, respond.source)
        respond.context(batch)  # makes the constants, as the batches before a capture do
    for parameter in adapter.learned.values():
        parameter.requires_grad_()
    with reads if refusing else nullcontext(), no_free_reads(), torch.enable_grad():
        return respond(batch, respond.host_inputs()._replace(looks=False))


def captures(adapter: Adapter, x: Tensor) -> bool:
    """Whether a batch like this could be a CUDA graph by now."""
    respond = adapter.responder
    plan = respond.method.plan(respond.context(Batch.of((x,), {}), looks=False))
    return plan.captured and not plan.reset_first
