"""The streams of a service in memory and on disk, and the one whose state is in the adapter."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.errors import EquipoiseError, StateError
from equipoise.json_form import from_json, to_json
from equipoise.network.named_tensors import part, prefixed
from equipoise.production.guard.guarded import Guarded
from equipoise.production.monitor import Monitor
from equipoise.production.server.answers import Answered, AnswerLog, LabelEntry, token_of
from equipoise.production.server.errors import StorageError, TooManyStreamsError
from equipoise.production.server.interface import GuardEvent
from equipoise.production.server.limits import Limits
from equipoise.production.server.served_stream import Live, ServedStream, Shown
from equipoise.production.server.store import StateFolder, StoredState, StreamFolder

WINDOW = 500
"""The samples that a stream's gauges are of, and that its monitor keeps."""


_Result = TypeVar("_Result")


class StreamCache:
    """All streams of a service; one thread uses it at a time.

    The state of one stream is in the adapter, and is taken out when another comes. The streams that were used
    least recently go to disk when there are more than `limits.resident`.

    Attributes:
        streams: by name, in memory or not.
    """

    def __init__(
        self, adapter: Adapter, folder: StateFolder, answers: AnswerLog, limits: Limits, *, guarded: bool
    ) -> None:
        self._adapter, self._folder, self._limits, self._guarded = adapter, folder, limits, guarded
        self._answers = answers
        adapter.reset()
        self._fresh = adapter.snapshot()
        self._heat, self._accuracy = adapter.source_temperature, adapter.source_accuracy
        self._live: OrderedDict[str, ServedStream] = OrderedDict()
        self._current: ServedStream | None = None
        self.streams: dict[str, ServedStream] = {each.name: _listed(each) for each in folder.streams()}
        self._left: OrderedDict[str, ServedStream] = OrderedDict()
        for stream in sorted(self.streams.values(), key=lambda each: each.last_seen)[-limits.resident :]:
            self._show(stream, _shown(stream.folder))

    # ------------------------------------------------------------------ memory

    def bring(self, stream: ServedStream) -> Live:
        """Bring the state of a stream into the adapter."""
        live = stream.live or self._load(stream)
        if self._current is not stream:
            self._park()
            self._adapter.restore(self._fresh if live.parked is None else live.parked)
            live.parked, self._current = None, stream
        stream.used = time.monotonic()
        self._live[stream.name] = stream
        self._live.move_to_end(stream.name)
        self._evict_surplus()
        return live

    def look(self, stream: ServedStream, call: Callable[[ServedStream, Live], _Result]) -> _Result:
        """Call a function with a stream; one on disk is read for it, and does not take another's memory."""
        if stream.live is not None:
            return call(stream, stream.live)
        live = self._load(stream)
        self._live[stream.name] = stream
        self._live.move_to_end(stream.name, last=False)
        try:
            return call(stream, live)
        finally:
            self.evict(stream)

    def _park(self) -> None:
        """Take the state of the current stream out of the adapter."""
        if self._current is not None and self._current.live is not None:
            self._current.live.parked = self._adapter.snapshot()
        self._current = None

    def create(self, name: str, shape: tuple[int, ...]) -> ServedStream:
        """Make a stream that starts from the source model; one whose name was lost on disk goes on."""
        if len(self.streams) >= self._limits.streams:
            raise TooManyStreamsError(f"there are {len(self.streams)} streams, and no more are taken")
        folder = self._folder.stream(name)
        if folder.used:
            folder.make()
            self.streams[name] = _listed(folder)
            return self.streams[name]
        stream = ServedStream(name=name, folder=folder, shape=shape)
        stream.source_temperature, stream.source_accuracy = self._heat, self._accuracy
        self._park()
        self._adapter.restore(self._fresh)
        stream.live, self._current = self._new(stream), stream
        self.streams[name] = stream
        return stream

    def discard(self, stream: ServedStream) -> None:
        """Delete a stream that has answered nothing, unless its folder holds earlier states or labels."""
        if stream.folder.used:
            return
        if stream is self._current:
            self._current = None
        self._live.pop(stream.name, None)
        del self.streams[stream.name]
        stream.folder.remove()

    def _new(self, stream: ServedStream) -> Live:
        """Guard and monitor of a stream whose state is in the adapter."""
        stream.folder.make()
        guard = Guarded(self._adapter, folder=stream.folder.snapshots) if self._guarded else None
        return Live(guard, Monitor(self._adapter, window=WINDOW, stream=stream.name, keep=WINDOW))

    def _evict_surplus(self) -> None:
        surplus = len(self._live) - self._limits.resident
        for stream in list(self._live.values())[: max(surplus, 0)]:
            self.evict(stream)

    def evict_idle(self) -> None:
        """Evict the streams that have had no request for a while."""
        while self._live:
            oldest = next(iter(self._live.values()))
            if time.monotonic() - oldest.used < self._limits.idle_seconds or not self.evict(oldest):
                return

    def evict(self, stream: ServedStream) -> bool:
        """Write a stream to disk and free its memory; it stays, and False is returned, if that fails."""
        if stream.unsaved and not self.try_save(stream):
            return False
        left = stream.live.shown() if stream.live is not None else None  # an error here leaves all as it was
        if stream is self._current:
            self._current = None
        self._show(stream, left)
        stream.live = stream.source_expected = None
        self._live.pop(stream.name, None)
        return True

    def _show(self, stream: ServedStream, left: Shown | None) -> None:
        """Keep what is to be shown of a stream on disk, for no more streams than may be in memory."""
        if left is None:
            return
        stream.left = left
        self._left[stream.name] = stream
        self._left.move_to_end(stream.name)
        if len(self._left) > self._limits.resident:
            self._left.popitem(last=False)[1].left = None

    # ------------------------------------------------------------------ disk

    def save(self, stream: ServedStream) -> None:
        """Write the state of a stream that is in memory; StorageError if that fails."""
        live = stream.live
        if live is None:
            return
        snapshot = self._adapter.snapshot() if stream is self._current else live.parked
        monitor = live.monitor.state()
        tensors = {
            **prefixed(f"adapter.{self._adapter.name}.", (snapshot or self._fresh).named()),
            **prefixed("monitor.", monitor["tensors"]),
        }
        if live.source_window is not None:
            tensors["source_window"] = live.source_window
        facts = {
            "stream": stream.facts(),
            "guard": live.guard.state() if live.guard else {},
            "monitor": monitor["numbers"],
            "events": [vars(event) for event in live.events],
        }
        try:
            stream.folder.write(StoredState(tensors, facts, to_json(live.shown())))
            stream.journal.set_aside()
        except OSError as error:
            raise StorageError(f"the state of {stream.name!r} was not written: {error}") from error
        stream.unsaved, live.saved = 0, live.newest

    def try_save(self, stream: ServedStream) -> bool:
        """Write the state of a stream; an event says so if that fails, for lack of memory too."""
        try:
            self.save(stream)
        except StorageError as error:
            stream.event("storage", "disk", str(error))
            return False
        except Exception as error:
            stream.event("storage", "error", f"the state was not written: {type(error).__name__}: {error}")
            return False
        return True

    def save_all(self) -> None:
        """Write every stream that has changed; StorageError, after the last one, if that failed for some."""
        failed = [s.name for s in list(self._live.values()) if s.unsaved and not self.try_save(s)]
        if failed:
            raise StorageError(f"not written: {', '.join(failed[:5])} ({len(failed)} streams)")

    def _load(self, stream: ServedStream) -> Live:
        """Guard, monitor and state of a stream from disk: the newest that can be read, or a reset."""
        self._park()
        damage: list[str] = []
        live = self._newest(stream, damage)
        found, judges = "an older one is used", True
        if live is None:
            self._adapter.restore(self._fresh)
            stream.folder.remove_snapshots()  # of a course that is lost: a rollback to them would go forward
            live, found = self._new(stream), "the stream starts again"
            stream.labels, stream.shape, judges = 0, (), not damage
        stream.live, self._current = live, stream
        stream.left = None
        self._left.pop(stream.name, None)
        if damage:
            stream.event("storage", "disk", f"a saved state cannot be read, {found}: {damage[0]}")
            stream.unsaved += 1
        self._replay(stream, judges=judges)
        if live.source_window is not None:
            stream.source_expected = self._adapter.source_expectations(live.source_window)
        return live

    def _newest(self, stream: ServedStream, damage: list[str]) -> Live | None:
        """A stream as the newest state on disk that can be read has it; `damage` gets the others' errors."""
        for state in stream.folder.read():
            found = state if isinstance(state, StateError) else self._fitting(stream, state)
            if isinstance(found, Live):
                return found
            damage.append(str(found))
        return None

    def _fitting(self, stream: ServedStream, state: StoredState) -> Live | EquipoiseError:
        """A stream as a stored state has it, with the adapter in that state; or why it does not fit."""
        try:
            return self._loaded(stream, state)
        except EquipoiseError as error:
            return error

    def _loaded(self, stream: ServedStream, state: StoredState) -> Live:
        self._adapter.restore(self._fresh)
        self._adapter.load_state_dict(part(state.tensors, "adapter."))
        live = self._new(stream)
        try:
            facts = state.facts
            if (
                live.guard and facts["guard"]
            ):  # else the state of a service without a guard: this guard begins with it
                live.guard.load(facts["guard"])
            live.monitor.load({"numbers": facts["monitor"], "tensors": part(state.tensors, "monitor.")})
            live.events.extend(GuardEvent(**event) for event in facts["events"])
            live.source_window = state.tensors.get("source_window")
            live.saved = live.newest
            live.reported = next(reversed(live.guard_events), None)
            stream.take(facts["stream"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a stream: {error!r}") from error
        return live

    def _replay(self, stream: ServedStream, *, judges: bool) -> None:
        """Take the labels that were acknowledged after the state was written, or all where there is none.

        Args:
            stream: that was read.
            judges: whether guard and adapter get them: not those of a model that was lost by damage.
        """
        for entry in list(stream.journal.entries(stream.labels)):
            self._answers.mark(entry.request, entry.labels)  # they may come again: never acknowledged
            self.learn_labels(stream, entry, judges=judges)

    def learn_labels(self, stream: ServedStream, entry: LabelEntry, *, judges: bool = True) -> None:
        """Give labels that are in the journal to the monitor and, where `judges`, to guard and adapter."""
        stream.labels = entry.number
        stream.unsaved += 1
        live, answered = stream.live, entry.answered
        if live is None:
            return
        if judges:
            self._tell(stream, live, torch.tensor(entry.labels), answered)
        live.monitor.observe_labels(token_of(entry.request), entry.labels, logits=answered.given)
        live.changes += 1

    def _tell(self, stream: ServedStream, live: Live, target: Tensor, answered: Answered) -> None:
        """Give labels of the adapter's answers to the guard, which passes them on, or to the adapter.

        Labels of answers from before the last reset are none of the adapter's.
        """
        own, source = answered.adapted, answered.source
        if own is None:
            return
        if live.guard:
            if source is not None or self._adapter.rehearsal is not None:
                live.guard.label(target, logits=own, source_logits=source, batch=answered.batch)
        elif self._adapter.rehearsal is not None and (answered.batch or math.inf) > stream.reset_after:
            self._adapter.label(target, logits=own, source_logits=source)


def _listed(folder: StreamFolder) -> ServedStream:
    """A stream on disk, with the numbers in the header of its newest state; the checksum is not read."""
    stream = ServedStream(name=folder.name, folder=folder)
    with suppress(TypeError, ValueError):  # it is reported when the stream is read
        stream.take(folder.facts())
    return stream


def _shown(folder: StreamFolder) -> Shown | None:
    """What the newest state on disk has to show; None where it was written before there was such a part."""
    with suppress(TypeError):
        return from_json(Shown, folder.shown())
    return None
