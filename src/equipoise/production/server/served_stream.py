"""The state of one stream: what a service knows of it always, and what only while it is in memory."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeAlias, get_args

from equipoise.calibration.rehearsal import Estimate
from equipoise.core.state import Snapshot
from equipoise.production.guard.guarded import Guarded
from equipoise.production.monitor import Monitor
from equipoise.production.monitor.monitor import events_after
from equipoise.production.server.interface import GuardEvent, Mode, StreamStatus
from equipoise.production.server.journal import Journal
from equipoise.production.server.store import StreamFolder
from equipoise.production.server.unguarded import Unguarded

_EVENTS = 100
"""The last events of the service that a stream keeps, and of all that its status has."""


_KINDS: Mapping[str, tuple[type, ...]] = {
    "shape": (list,),
    "mode": (str,),
    "batches": (int,),
    "samples": (int,),
    "last_seen": (float, int),
    "labels": (int,),
    "source_temperature": (float, int, NoneType),
    "source_accuracy": (list, NoneType),
    "unlearned": (int,),
}
"""The types of a stream's numbers on disk."""

Guard: TypeAlias = Guarded | Unguarded
"""The guard of a stream, around the adapter that all streams share."""


@dataclass
class Live:
    """The part of a stream that is only in memory while it is resident.

    Attributes:
        guard: of the stream, around the adapter that all streams share.
        monitor: of the stream.
        events: those that the service itself has to report.
        parked: the adapter's state; None while it is in the adapter.
        reported: the last event of the guard that the monitor has counted.
        saved: the newest snapshot of the guard when the state was last written; empty where there was none.
        changes: how often the monitor has been given answers or labels, counted when it has them.
        gauges: the monitor's, with the number of changes that they were computed after.
    """

    guard: Guard
    monitor: Monitor
    events: deque[GuardEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    parked: Snapshot | None = None
    reported: Any = None
    saved: str = ""
    changes: int = 0
    gauges: tuple[int, dict[str, float]] = (-1, {})

    @property
    def newest(self) -> str:
        """The name of the guard's newest snapshot; empty where there is none."""
        return next(reversed(self.guard.snapshots), "")

    def current_gauges(self) -> dict[str, float]:
        """The monitor's gauges; computed again only after a change."""
        now, (then, gauges) = self.changes, self.gauges
        if now != then:
            gauges = self.monitor.gauges()
            self.gauges = (now, gauges)
        return gauges

    def fresh_events(self) -> list[Any]:
        """The guard's events that the monitor has not counted; from now on it has."""
        fresh = events_after(self.guard.events, self.reported)
        self.reported = fresh[-1] if fresh else self.reported
        return fresh


@dataclass
class Stream:
    """A stream: a few numbers that are always in memory.

    Attributes:
        name: of the stream.
        folder: of its files.
        shape: of a sample.
        mode: who answers, and whether it is learned from.
        batches: batches answered.
        samples: samples answered.
        last_seen: time of the last request, seconds since 1970.
        labels: the number of requests that labels have come for.
        source_temperature: the divisor of the source model's logits, as it was last known.
        source_accuracy: that of the source model, likewise.
        unsaved: batches since the state was last written.
        unlearned: batches since one was learned from.
        used: when it was last in the adapter; of `time.monotonic`.
        live: the rest, while it is in memory.
    """

    name: str
    folder: StreamFolder
    shape: tuple[int, ...]
    mode: Mode = "adapted"
    batches: int = 0
    samples: int = 0
    last_seen: float = field(default_factory=time.time)
    labels: int = 0
    source_temperature: float | None = None
    source_accuracy: Estimate | None = None
    unsaved: int = 0
    unlearned: int = 0
    used: float = field(default_factory=time.monotonic)
    live: Live | None = field(default=None, repr=False)

    @property
    def journal(self) -> Journal:
        """The journal of its labels."""
        return Journal(self.folder.labels)

    def facts(self) -> dict[str, Any]:
        """The numbers that are written to disk."""
        accuracy = self.source_accuracy
        return {
            "shape": list(self.shape),
            "mode": self.mode,
            "batches": self.batches,
            "samples": self.samples,
            "last_seen": self.last_seen,
            "labels": self.labels,
            "source_temperature": self.source_temperature,
            "source_accuracy": None if accuracy is None else list(vars(accuracy).values()),
            "unlearned": self.unlearned,
        }

    @classmethod
    def from_facts(cls, folder: StreamFolder, facts: Mapping[str, Any]) -> "Stream":
        """A stream that is on disk, from the numbers that were written; TypeError for others."""
        own = {name: _checked(name, facts[name]) for name in _KINDS if name in facts}
        shape, accuracy = tuple(own.pop("shape", ())), own.pop("source_accuracy", None)
        estimate = None if accuracy is None else Estimate(*accuracy)
        return cls(folder.name, folder, shape, source_accuracy=estimate, **own)

    def event(self, action: str, trigger: str, reason: str) -> None:
        """Report an event of the service, if the last one was not the same."""
        if self.live is None:
            return
        events = self.live.events
        if not events or (events[-1].action, events[-1].reason) != (action, reason):
            events.append(GuardEvent(time.time(), self.batches, action, trigger, reason))

    def status(self) -> StreamStatus:
        """The stream as the page and the gauges show it; without gauges and events if it is on disk."""
        live = self.live
        return StreamStatus(
            name=self.name,
            mode=self.mode,
            resident=live is not None,
            batches=self.batches,
            samples=self.samples,
            last_seen=self.last_seen,
            guard="on disk until its next request" if live is None else live.guard.status(),
            gauges={} if live is None else live.current_gauges(),
            events=() if live is None else _merged(live),
            snapshots=() if live is None else tuple(live.guard.snapshots),
        )


def _checked(name: str, value: Any) -> Any:
    """A number of a stream as it was written, if it is of the kind that it should be."""
    whole = name != "shape" or (isinstance(value, list) and all(isinstance(side, int) for side in value))
    if not isinstance(value, _KINDS[name]) or not whole or (name == "mode" and value not in get_args(Mode)):
        raise TypeError(f"expected another {name}, got {value!r}")
    return value


def _merged(live: Live) -> tuple[GuardEvent, ...]:
    """The last events of guard and service, oldest first; their numbers of batches count differently."""
    own = [
        GuardEvent(event.time, event.batch, event.action, event.trigger, event.reason)
        for event in live.guard.events
    ]
    return tuple(sorted([*own, *live.events], key=lambda event: event.time)[-_EVENTS:])
