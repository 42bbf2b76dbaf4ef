"""The captured engine: the whole step as CUDA graphs, one for each shape of batch."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core.method import Plan
from equipoise.core.record import Record
from equipoise.core.state import NewMemoryError, State
from equipoise.core.step import HostInputs, Responder
from equipoise.network.batch import Batch
from equipoise.network.forward import COMPILED_AT

CAPTURED_AT = 2
"""The sighting of a shape at which it is captured: a ragged last batch is never worth it."""

MOST_SEEN = 256
"""Shapes that sightings are counted of; with more, counting starts again."""

MOST_GRAPHS = 16
"""Graphs kept at once; the one longest unused makes room."""


class CapturedSteps:
    """Runs batches by replaying a captured step where there is one, else by the eager engine.

    A replay does the same as the eager step, by the same kernels, without the host in between: inputs and the
    host's numbers are copied into the graph's own tensors, the state is at fixed addresses, and the answer is
    a copy. A step that goes wrong is undone on the device; the host learns of it some batches later and then
    runs batches eagerly until one is fine.

    Attributes:
        refusal: the reason why nothing is captured any more; empty while there is none.
    """

    def __init__(self) -> None:
        self._start(generation=0)

    def _start(self, generation: int) -> None:
        self.refusal = ""
        self._generation = generation
        self._graphs: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._pool: Any = None
        self._alarm: _Alarm | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "CapturedSteps":
        """A copy of an adapter captures its own graphs."""
        return CapturedSteps()

    def __reduce__(self) -> tuple[type["CapturedSteps"], tuple[()]]:
        """CUDA graphs cannot be pickled."""
        return CapturedSteps, ()

    @property
    def sizes(self) -> list[int]:
        """The sizes of batches that are captured."""
        return sorted({captured.batch.rows for captured in self._graphs.values()})

    def run(self, respond: Responder, batch: Batch) -> tuple[Tensor, Record]:
        """Answer a batch and learn from it."""
        if self._generation != respond.student.generation:  # tensors have moved: nothing captured is valid
            self._start(respond.student.generation)
        rang = self._alarm is not None and self._alarm.rang()
        plan = respond.method.plan(respond.context(batch, looks=False))
        key = None if self.refusal or rang else _key(respond, batch, plan)
        obstacle = "" if key is None else self._prepare(respond, batch, key)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._replay(respond, batch, plan, self._graphs[key])
        answer, record = respond.eagerly(batch)
        self.refusal = self.refusal or obstacle  # if the batch itself was at fault, there is no answer
        if self._alarm is not None and rang:
            verdict = record.verdict
            if bool(verdict.rows.good.all()) and bool(verdict.calm()):
                self._alarm.rearm()
        return answer, record

    def _prepare(self, respond: Responder, batch: Batch, key: Hashable) -> str:
        """Capture a graph for the batch if it is time; returns the obstacle, if there was one."""
        if key in self._graphs:
            return ""
        if len(self._seen) > MOST_SEEN:
            self._seen.clear()
        self._seen[key] += 1
        if self._seen[key] < CAPTURED_AT:
            return ""
        try:
            self._graphs[key] = self._capture(respond, batch)
        except NewMemoryError:  # from the next batch on, the memory is there, under another key
            return ""
        except RuntimeError as error:
            # A model that waits for the GPU in its forward, say, raises here.
            return str(error).splitlines()[0]
        if len(self._graphs) > MOST_GRAPHS:
            oldest, _ = self._graphs.popitem(last=False)
            del self._seen[oldest]
        return ""

    def _capture(self, respond: Responder, batch: Batch) -> "_Captured":
        student, state = respond.student, respond.state
        alarm = self._alarm = self._alarm or _Alarm(student.device)
        inputs, feed = batch.map(lambda value: value.clone()), _Feed(state, student.device)
        if student.compiler.wanted:  # a compiler may wait as it likes
            with state.trial():
                for _ in range(COMPILED_AT):
                    respond(inputs, feed.drawn())
        with state.trial(), _tuning(respond):  # in which the libraries set themselves up
            self._rehearse(lambda: respond(inputs, feed.drawn()))

        def step() -> tuple[Tensor, Record]:
            answer, record = respond(inputs, feed.given())
            alarm.watch(record.verdict.calm())
            return answer, record

        counts = dict(state.counts)
        try:
            with _tuning(respond):
                return _Captured(inputs, feed, *self._recorded(step))
        finally:
            state.counts.update(counts)  # recording runs nothing on the device, and counts nothing

    def _rehearse(self, step: Callable[[], object]) -> None:
        """Run a step beside the caller's stream, as it will be recorded; RuntimeError if it waits."""
        self._side.wait_stream(torch.cuda.current_stream())
        try:
            with no_waiting(), torch.cuda.stream(self._side):
                step()
        finally:
            torch.cuda.current_stream().wait_stream(self._side)  # before it is undone

    def _recorded(
        self, step: Callable[[], tuple[Tensor, Record]]
    ) -> tuple[Callable[[], None], tuple[Tensor, Record]]:
        """The replay of a step, and the tensors where its results will be; it is not run now."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # Other threads, a data loader's, say, may go on using the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            results = step()
        return graph.replay, results

    @cached_property
    def _side(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def _replay(
        self, respond: Responder, batch: Batch, plan: Plan, captured: "_Captured"
    ) -> tuple[Tensor, Record]:
        captured.feed.fill()
        for own, came in zip(captured.batch.tensors(), batch.tensors(), strict=True):
            own.copy_(came, non_blocking=True)
        captured.replay()
        respond.state.counts.update(plan.counts)
        answer, record = captured.results
        verdict = record.verdict._replace(idle=plan.idle or record.verdict.idle)
        return answer.clone(), replace(record, verdict=verdict)


class _Feed:
    """The host's numbers for a captured step, in tensors at fixed addresses: counts and random numbers."""

    def __init__(self, state: State, device: torch.device) -> None:
        self._state, self._device = state, device
        self._counts = {name: torch.tensor(count, device=device) for name, count in state.counts.items()}
        self._draws: list[Tensor] = []

    def drawn(self) -> HostInputs:
        """Numbers for a rehearsal, which notes the shapes that are drawn."""
        self._draws = []

        def uniform(shape: tuple[int, ...]) -> Tensor:
            self._draws.append(torch.empty(shape, device=self._device))
            return self._draw_into(self._draws[-1])

        return HostInputs(self._counts, uniform, looks=False)

    def given(self) -> HostInputs:
        """The tensors to record, in the order in which they are drawn."""
        draws = iter(self._draws)
        return HostInputs(self._counts, lambda _shape: next(draws), looks=False)

    def fill(self) -> None:
        """Fill the tensors for the next replay."""
        for name, count in self._counts.items():
            count.fill_(self._state.counts[name])
        for draws in self._draws:
            self._draw_into(draws)

    def _draw_into(self, draws: Tensor) -> Tensor:
        drawn = self._state.random.draw(tuple(draws.shape))
        return draws.copy_(drawn.pin_memory() if draws.is_cuda else drawn, non_blocking=True)


@dataclass(frozen=True)
class _Captured:
    """A recorded step with the tensors that it reads and writes."""

    batch: Batch
    feed: _Feed
    replay: Callable[[], None]
    results: tuple[Tensor, Record]


class _Alarm:
    """A device flag that the host polls without synchronising."""

    def __init__(self, device: torch.device) -> None:
        self._calm = torch.ones((), dtype=torch.bool, device=device)
        self._seen = torch.ones((), dtype=torch.bool, pin_memory=device.type == "cuda")

    def watch(self, fine: Tensor) -> None:
        """As a part of a graph: clear the flag, for good, if all is not fine."""
        self._calm.copy_(self._calm & fine)
        self._seen.copy_(self._calm, non_blocking=True)

    def rang(self) -> bool:
        """Whether the flag is known to be cleared; the news may be some batches late."""
        return not bool(self._seen)

    def rearm(self) -> None:
        """Set the flag after a batch that the host read, and so waited for all before it."""
        self._calm.fill_(True)
        self._seen.fill_(True)


def _key(respond: Responder, batch: Batch, plan: Plan) -> Hashable | None:
    """The values that must be equal for two batches to share a graph; None: this one is not for a graph.

    The values of anything but tensors on the device are fixed in a graph: only simple ones can be compared.
    """
    student, tensors = respond.student, batch.tensors()
    values = batch.named()
    rest = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    simple = all(value is None or isinstance(value, (bool, int, float, str)) for value in rest.values())
    if (
        not plan.captured
        or plan.reset_first
        or not simple
        or any(tensor.device != student.device for tensor in tensors)
    ):
        return None
    kind = student.device.type
    cast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    places = tuple(
        tuple((name, t.data_ptr(), t.shape, t.dtype) for name, t in tensors.items())
        for tensors in (respond.state.memory, respond.state.temperature)
    )
    named = tuple((name, type(value), value) for name, value in rest.items())  # True, 1 and 1.0 are equal
    return (plan.course, shapes, tuple(values), named, cast, places)


@contextmanager
def _tuning(respond: Responder) -> Iterator[None]:
    """Let cuDNN try which of its kernels is fastest in bfloat16, where the usual ones are slow.

    In float32 they would differ from those that run eagerly in the last digits.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or respond.student.layout.precision == "bf16"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise RuntimeError for whatever makes the host wait for the GPU: a graph cannot contain it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # "a prototype feature": an overlooked wait fails in the capture
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
