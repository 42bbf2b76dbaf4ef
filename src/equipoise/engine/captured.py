"""The whole step of an adapter as CUDA graphs, one for each shape of batch."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core.record import Record
from equipoise.core.responder import Responder
from equipoise.network.batch import Batch
from equipoise.network.compiled import COMPILED_AT
from equipoise.network.named_tensors import ArrivalError
from equipoise.network.outcome import Check, all_hold

CAPTURED_AT = 2
"""The sighting of a shape at which it is captured: a ragged last batch is never worth it."""

MOST_SEEN = 256
"""Shapes that sightings are counted of; with more, counting starts anew."""

MOST_GRAPHS = 16
"""Graphs kept at once; the one longest unused makes room."""


class StepGraphs:
    """Runs the batches of a responder, by replaying a captured step where there is one.

    A replay does what the plain step does, by the same kernels, without the host in between: inputs are
    copied into the graph's own, state lives in tensors that stay where they are (`kept` and the temperature
    are moved there when something else has replaced them: a reset, a load, a batch of another shape), and the
    answer is a copy. What goes wrong is undone on the device; the host hears of it some batches later and
    then looks at batches itself until one is fine.

    Attributes:
        refusal: why nothing is captured any more; empty while there is no reason.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._homes: dict[Hashable, Tensor] = {}
        self._pool: Any = None
        self._alarm: _Alarm | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepGraphs":
        """A copy of an adapter captures its own."""
        return StepGraphs()

    def __reduce__(self) -> tuple[type["StepGraphs"], tuple[()]]:
        """Neither can graphs be written down."""
        return StepGraphs, ()

    @property
    def sizes(self) -> list[int]:
        """The sizes of batches that are captured."""
        return sorted({captured.batch.rows for captured in self._graphs.values()})

    def run(self, responder: Responder, batch: Batch) -> tuple[Tensor, Record]:
        """Answer a batch and learn from it."""
        rang = self._alarm is not None and self._alarm.rang()
        key = None if self.refusal or rang else _key(responder, batch)
        obstacle = ""
        if key is not None:
            obstacle = self._prepare(responder, batch, key)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._replay(responder, batch, self._graphs[key])
        answer, record = responder.respond(batch)
        self.refusal = self.refusal or obstacle  # if the batch itself was at fault, there is no answer
        if self._alarm is not None and rang and not record.set_aside:
            self._alarm.rearm()
        return answer, record

    def _prepare(self, responder: Responder, batch: Batch, key: Hashable) -> str:
        """Capture a graph for the batch if it is time; returns what stood in the way of it."""
        if key in self._graphs:
            return ""
        if len(self._seen) > MOST_SEEN:
            self._seen.clear()
        self._seen[key] += 1
        if self._seen[key] < CAPTURED_AT:
            return ""
        try:
            self._graphs[key] = self._capture(responder, batch)
        except ArrivalError:  # something is kept from this batch on: the next ones have another key
            return ""
        except RuntimeError as error:
            # What a graph cannot have, a model that waits for the GPU in its forward, say, raises here.
            return str(error).splitlines()[0]
        if len(self._graphs) > MOST_GRAPHS:
            oldest, _ = self._graphs.popitem(last=False)
            del self._seen[oldest]
        return ""

    def _settle(self, responder: Responder) -> None:
        """Let state be where the graphs expect it."""
        heat = responder.temper.temperature
        owners: list[tuple[Hashable, dict[str, Tensor]]] = [("kept", responder.kept), (heat, heat.contents)]
        for place, contents in owners:
            for name, tensor in contents.items():
                if place == "kept" and tensor.device != responder.device:
                    continue  # the host keeps it for itself, and brings what a step needs of it
                kind = (place, name, tensor.shape, tensor.dtype)  # when it comes back, so may a graph of it
                home = self._homes.get(kind)
                if home is None:
                    home = self._homes[kind] = tensor.to(responder.device, copy=True)
                elif home is not tensor:
                    home.copy_(tensor)
                contents[name] = home

    def _capture(self, responder: Responder, batch: Batch) -> "_Captured":
        alarm = self._alarm = self._alarm or _Alarm(responder.device)
        self._settle(responder)
        inputs = batch.map(lambda value: value.clone())
        if responder.compiler.wanted:  # a compiler may wait as it likes
            with responder.trial(), _feeding(responder, _on(responder.device, responder.feed(batch))):
                for _ in range(COMPILED_AT):
                    responder.respond_guarded(inputs)
        with responder.trial(), responder.tuning():  # in which the libraries set themselves up; undone
            fed = _on(responder.device, responder.feed(batch))
            with _feeding(responder, fed):
                self._rehearse(lambda: responder.respond_guarded(inputs))
        self._settle(responder)
        heat = responder.temper.temperature
        kept, warmth = dict(responder.kept), dict(heat.contents)

        def step() -> tuple[Tensor, Record]:
            answer, record, clean = responder.respond_guarded(inputs)
            _write_back(kept, responder.kept)
            _write_back(warmth, heat.contents)
            grave = [check for check in record.checks if check.undoes or check.alarms]
            alarm.watch(all_hold([Check(clean, ""), *grave]))
            return answer, record

        try:
            with _feeding(responder, fed), responder.tuning():
                return _Captured(inputs, fed, *self._recorded(step))
        finally:
            responder.kept.update(kept)
            heat.contents = warmth

    def _rehearse(self, step: Callable[[], object]) -> None:
        """Run a step beside the caller's stream, as it will be recorded; RuntimeError if it waits."""
        self._side.wait_stream(torch.cuda.current_stream())
        try:
            with no_waiting(), torch.cuda.stream(self._side):
                step()
        finally:
            torch.cuda.current_stream().wait_stream(self._side)  # what follows undoes it

    def _recorded(
        self, step: Callable[[], tuple[Tensor, Record]]
    ) -> tuple[Callable[[], None], tuple[Tensor, Record]]:
        """What runs a step again, and where its results will be; it is not run now."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # Other threads, a data loader's, say, may go on using the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            results = step()
        return graph.replay, results

    @cached_property
    def _side(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def _replay(self, responder: Responder, batch: Batch, step: "_Captured") -> tuple[Tensor, Record]:
        self._settle(responder)
        for name, tensor in responder.feed(batch).items():
            step.fed[name].copy_(tensor.pin_memory() if responder.device.type == "cuda" else tensor, True)
        for own, came in zip(step.batch.tensors(), batch.tensors(), strict=True):
            own.copy_(came, non_blocking=True)
        step.replay()
        answer, record = step.results
        return answer.clone(), record


@dataclass(frozen=True)
class _Captured:
    """A recorded step with the tensors that it reads and writes."""

    batch: Batch
    fed: dict[str, Tensor]
    replay: Callable[[], None]
    results: tuple[Tensor, Record]


class _Alarm:
    """A flag that falls on the device and that the host reads when it has arrived, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._calm = torch.ones((), dtype=torch.bool, device=device)
        self._seen = torch.ones((), dtype=torch.bool, pin_memory=device.type == "cuda")

    def watch(self, fine: Tensor) -> None:
        """As a part of a graph: let the flag fall, and stay down, if all is not fine."""
        self._calm.copy_(self._calm & fine)
        self._seen.copy_(self._calm, non_blocking=True)

    def rang(self) -> bool:
        """Whether the flag is known to have fallen; the news may be some batches late."""
        return not bool(self._seen)

    def rearm(self) -> None:
        """After a batch that the host looked at, and so waited for all before it."""
        self._calm.fill_(True)
        self._seen.fill_(True)


def _key(responder: Responder, batch: Batch) -> Hashable | None:
    """What must be equal for two batches to share a graph; None: this one is not for a graph.

    The values of anything but tensors on the device are fixed in a graph: only simple ones are trusted to
    tell whether they are the same.
    """
    course, tensors = responder.course(batch), batch.tensors()
    rest = {name: value for name, value in batch.kwargs.items() if not isinstance(value, Tensor)}
    simple = all(value is None or isinstance(value, (bool, int, float, str)) for value in rest.values())
    if course is None or not simple or any(tensor.device != responder.device for tensor in tensors):
        return None
    kind = responder.device.type
    cast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    names = (tuple(batch.kwargs), tuple(responder.kept))
    return (course, shapes, tuple(rest.items()), cast, names, responder.temper)


def _on(device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _write_back(homes: Mapping[str, Tensor], news: Mapping[str, Tensor]) -> None:
    for name, new in news.items():
        if new is not homes[name]:
            homes[name].copy_(new)


@contextmanager
def _feeding(responder: Responder, fed: dict[str, Tensor]) -> Iterator[None]:
    responder.fed = fed
    try:
        yield
    finally:
        responder.fed = {}


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises RuntimeError: a graph cannot have it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # "a prototype feature": what it overlooks, the capture will refuse
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
