"""A step as a CUDA graph holds it, on the CPU: the host reads no tensor, and reading one is an error."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.adapter import Adapter
from equipoise.core.method import Context, Method, Plan
from equipoise.core.record import Record
from equipoise.core.step import Responder
from equipoise.errors import ConformanceError
from equipoise.network.batch import Batch
from equipoise.network.verdict import no_free_reads

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
    return plan.captured and not plan.anew
