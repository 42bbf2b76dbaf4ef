"""The state of one stream: what a service knows of it always, and what only while it is in memory."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from equipoise.calibration.expected import Expectations
from equipoise.calibration.rehearsal import Estimate
from equipoise.core.state import Snapshot
from equipoise.json_form import from_json, to_json
from equipoise.production.guard.decider import Event
from equipoise.production.guard.guarded import Guarded
from equipoise.production.monitor import Monitor
from equipoise.production.monitor.monitor import events_after
from equipoise.production.server.answers import Journal
from equipoise.production.server.interface import GuardEvent, Mode, StreamStatus
from equipoise.production.server.store import StreamFolder

_EVENTS = 100
"""The last events of the service that a stream keeps, and of all that its status has."""


@dataclass(frozen=True)
class Shown:
    """What the page and the metrics show of a stream besides its numbers, as of a time.

    Attributes:
        guard: the guard's status in words.
        gauges: the monitor's, by name.
        events: the last events, oldest first.
        snapshots: the names of those that a rollback can go to, oldest first.
    """

    guard: str
    gauges: Mapping[str, float]
    events: tuple[GuardEvent, ...]
    snapshots: tuple[str, ...]


NOTHING_SHOWN = Shown("on disk until its next request", {}, (), ())


@dataclass
class Live:
    """The part of a stream that is only in memory while it is resident.

    Attributes:
        guard: of the stream, around the adapter that all streams share; None in a service without one.
        monitor: of the stream.
        events: those that the service itself has to report.
        parked: the adapter's state; None while it is in the adapter.
        reported: the last event of the guard that the monitor has counted.
        saved: the newest snapshot of the guard when the state was last written; empty where there was none.
        source_window: of the source model's answers (`Adapter.source_window`), once a request has asked for
            sets or a decision; None before.
        changes: how often the monitor has been given answers or labels, counted when it has them.
        gauges: the monitor's, with the number of changes that they were computed after.
    """

    guard: Guarded | None
    monitor: Monitor
    events: deque[GuardEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    parked: Snapshot | None = None
    reported: Event | None = None
    saved: str = ""
    source_window: Tensor | None = None
    changes: int = 0
    gauges: tuple[int, dict[str, float]] = (-1, {})

    @property
    def snapshots(self) -> tuple[str, ...]:
        """The names of the guard's snapshots, oldest first."""
        return self.guard.snapshots if self.guard else ()

    @property
    def newest(self) -> str:
        """The name of the newest snapshot; empty where there is none."""
        return next(reversed(self.snapshots), "")

    @property
    def guard_events(self) -> tuple[Event, ...]:
        """The guard's events, oldest first."""
        return self.guard.events if self.guard else ()

    def current_gauges(self) -> dict[str, float]:
        """The monitor's gauges; computed again only after a change."""
        now, (then, gauges) = self.changes, self.gauges
        if now != then:
            gauges = self.monitor.gauges()
            self.gauges = (now, gauges)
        return gauges

    def shown(self) -> Shown:
        """What is to be shown now."""
        return Shown(
            guard=self.guard.status() if self.guard else "unguarded: nothing is watched",
            gauges=self.current_gauges(),
            events=_merged(self),
            snapshots=self.snapshots,
        )

    def fresh_events(self) -> list[Event]:
        """The guard's events that the monitor has not counted; from now on it has."""
        fresh = events_after(self.guard_events, self.reported)
        self.reported = fresh[-1] if fresh else self.reported
        return fresh


@dataclass(kw_only=True)
class StreamFacts:
    """The numbers of a stream that are on disk with its state.

    Attributes:
        shape: of a sample; empty before the first.
        mode: who answers, and whether it is learned from.
        batches: batches answered.
        samples: samples answered.
        last_seen: time of the last request, seconds since 1970.
        labels: the number of requests that labels have come for.
        source_temperature: the divisor of the source model's logits, as it was last known.
        source_accuracy: the accuracy of the source model, as it was last known.
        unlearned: batches since one was learned from.
        reset_after: the batches before the last reset without a guard.
    """

    shape: tuple[int, ...] = ()
    mode: Mode = "adapted"
    batches: int = 0
    samples: int = 0
    last_seen: float = field(default_factory=time.time)
    labels: int = 0
    source_temperature: float | None = None
    source_accuracy: Estimate | None = None
    unlearned: int = 0
    reset_after: int = 0


@dataclass(kw_only=True)
class ServedStream(StreamFacts):
    """A stream of a service: a few numbers that are always in memory.

    Attributes:
        name: of the stream.
        folder: of its files.
        unsaved: batches since the state was last written.
        used: when it was last in the adapter; of `time.monotonic`.
        live: the rest, while it is in memory.
        source_expected: what is expected of decisions about the source model's answers, as it was last known;
            None where nobody has asked for any, and while the stream is on disk.
        left: what was to be shown when the stream left memory; None for one that is in memory, or forgotten.
    """

    name: str
    folder: StreamFolder
    unsaved: int = 0
    used: float = field(default_factory=time.monotonic)
    live: Live | None = field(default=None, repr=False)
    source_expected: Expectations | None = field(default=None, repr=False)
    left: Shown | None = field(default=None, repr=False)

    @property
    def journal(self) -> Journal:
        """The journal of its labels."""
        return Journal(self.folder.labels)

    def facts(self) -> dict[str, Any]:
        """The numbers that are written to disk; an estimate is a list of its values."""
        own = {each.name: to_json(getattr(self, each.name)) for each in fields(StreamFacts)}
        if (estimate := own["source_accuracy"]) is not None:
            own["source_accuracy"] = list(estimate.values())
        return own

    def take(self, facts: Mapping[str, Any]) -> None:
        """Take over the numbers that were written; TypeError, and nothing has changed, for others."""
        known = {each.name for each in fields(StreamFacts)}  # a later version may have written more
        values = {name: value for name, value in facts.items() if name in known}
        if (estimate := values.get("source_accuracy")) is not None:
            names = [each.name for each in fields(Estimate)]
            values["source_accuracy"] = dict(zip(names, estimate, strict=True))
        vars(self).update(vars(from_json(StreamFacts, values)))

    def event(self, action: str, trigger: str, reason: str) -> None:
        """Report an event of the service, if the last one was not the same."""
        if self.live is None:
            return
        events = self.live.events
        if not events or (events[-1].action, events[-1].reason) != (action, reason):
            events.append(GuardEvent(time.time(), self.batches, action, trigger, reason))

    def status(self) -> StreamStatus:
        """The stream as the page and the metrics show it; on disk, as it was when it left memory."""
        live = self.live
        shown = self.left or NOTHING_SHOWN if live is None else live.shown()
        return StreamStatus(
            name=self.name,
            mode=self.mode,
            resident=live is not None,
            batches=self.batches,
            samples=self.samples,
            last_seen=self.last_seen,
            **vars(shown),
        )


def _merged(live: Live) -> tuple[GuardEvent, ...]:
    """The last events of guard and service, oldest first; their numbers of batches count differently."""
    own = [GuardEvent(**vars(event)) for event in live.guard_events]
    return tuple(sorted([*own, *live.events], key=lambda event: event.time)[-_EVENTS:])
