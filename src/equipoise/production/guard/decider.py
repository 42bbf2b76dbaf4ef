"""The decisions: a pure function of the state before and an observation, so that a log reproduces them.

An alarm climbs a ladder. The first one rolls the adapter back to the newest snapshot from before the evidence
began, and holds it for `cool_down` batches; the second resets it to the source model and holds it as long;
the third resets it and holds it until a person releases it. An alarm is the first again once `REMEMBERED`
cool-downs have gone by without another. Time is counted in batches: a clock plays no part.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from equipoise.production.guard.eprocess import EProcess
from equipoise.production.guard.observation import Observation
from equipoise.production.guard.triggers import (
    MOVED_ANSWERS,
    Alarm,
    BelowSource,
    Collapse,
    Disagreement,
    Estimates,
    Labels,
    Runaway,
    paired_process,
)

Action = Literal["hold", "release", "rollback", "reset", "snapshot"]
"""An action on an adapter.

"hold": answer and learn nothing. "release": learn again. "rollback": go back to a snapshot. "reset": go back
to the source model. "snapshot": one was taken because a person asked for it.
"""

REQUEST = "request"
"""The trigger of an action that a person asked for."""

REMEMBERED = 10
"""Cool-downs after which an alarm is forgotten."""

EVIDENCE_HALF_LIFE = 10.0
"""The losses, one a batch, after which a loss counts half in the bets."""

DISAGREEMENT_HALF_LIFE = 4.0
"""The same of the losses of disagreement.

Each is of its batch alone, not of a window that later batches share, so the bets may follow sooner. Of 2 to
20 tried on simulated streams, 4 was among the soonest for a sudden rise and lost nothing on a small one.
"""

LAST_RUNG = 3
"""The alarm in a row after which only a person releases the adapter."""

TESTS = 4
"""The e-processes that share δ."""


@dataclass(frozen=True)
class Event:
    """An action on an adapter, and its cause.

    Attributes:
        time: seconds since 1970, for the reader alone: no decision depends on a clock.
        batch: the number of the batch after which it happened; 0 before the first.
        action: "hold", "release", "rollback", "reset" or "snapshot".
        trigger: "estimates", "labels", "collapse", "disagreement", "below source" or "runaway";
            "cool-down" where a hold ends; "request" where a person asked for it.
        reason: the cause in words.
    """

    time: float
    batch: int
    action: Action
    trigger: str
    reason: str

    def __str__(self) -> str:
        """The event in a line."""
        return f"batch {self.batch}: {self.action} ({self.trigger}): {self.reason}"


@dataclass(frozen=True)
class Options:
    """The options that decisions depend on.

    Attributes:
        tolerance: accuracy below the source model's that is tolerated.
        delta: the chance that any of the e-processes ever raises a false alarm.
        cool_down: batches for which the adapter is held after an alarm.
        disagreement: the largest share of answers that differed from the source model's in rehearsal where
            adapting lost nothing; None without one.
        familiar: the novelty up to which inputs are not new, by the rehearsal; None without one.
        reach: how far the weights moved from the source model's in rehearsal at most; None without one.
    """

    tolerance: float = 0.05
    delta: float = 0.01
    cool_down: int = 20
    disagreement: float | None = None
    familiar: float | None = None
    reach: float | None = None


@dataclass(frozen=True)
class Decision:
    """An action and its cause.

    Attributes:
        action: "none", "hold", "release", "rollback", "reset" or "snapshot".
        trigger: its trigger.
        reason: in words.
        calm: of a rollback: the last batch before the evidence began; the snapshot is from no later.
        origin: the batch of the last reset; the snapshot is from after it.
    """

    action: str = "none"
    trigger: str = ""
    reason: str = ""
    calm: int = 0
    origin: int = 0

    def to_json(self) -> dict[str, Any] | None:
        """A dict of plain numbers and text; None where nothing is done."""
        return None if self.action == "none" else asdict(self)

    def event(self, batch: int, *, time: float, action: Action, note: str) -> Event:
        """The event of the decision once it is carried out.

        Args:
            batch: the batch after which it was made.
            time: of the action.
            action: the action in the end: "reset" where there was no snapshot for a "rollback".
            note: the particulars, in words.
        """
        reason = "; ".join(filter(None, (self.reason, note)))
        return Event(time, batch, action, self.trigger, reason)


NOTHING = Decision()


@dataclass(frozen=True)
class Watch:
    """Everything that a decision depends on: the triggers, and the place on the ladder.

    Attributes:
        estimates: the trigger on estimated accuracies.
        labels: the trigger on labels.
        collapse: the trigger on the class histogram.
        disagreement: the trigger on answers that differ from the source model's.
        below: the trigger on the intervals of the estimates.
        runaway: the trigger on weights and statistics.
        batch: batches so far.
        held: why the adapter is held; empty where it is not.
        until: the batch after which the hold ends; None: when a person releases it.
        strikes: alarms on the ladder so far.
        last_alarm: the batch of the last one.
        origin: the batch of the last reset.
        acted: the batch of the last rollback or reset; −1 before the first.
        largest: the samples of the largest batch so far.
    """

    estimates: Estimates
    labels: Labels
    collapse: Collapse
    disagreement: Disagreement
    below: BelowSource
    runaway: Runaway
    batch: int = 0
    held: str = ""
    until: int | None = None
    strikes: int = 0
    last_alarm: int = 0
    origin: int = 0
    acted: int = -1
    largest: int = 0

    @classmethod
    def fresh(cls, options: Options, weights: float = 0.0, **kept: Any) -> "Watch":
        """A watch without evidence, of an adapter whose weights are so far from the source model's."""
        tolerance, delta = options.tolerance, options.delta / TESTS
        return cls(
            Estimates(paired_process(tolerance, delta, EVIDENCE_HALF_LIFE)),
            Labels(paired_process(tolerance, delta, EVIDENCE_HALF_LIFE)),
            Collapse(EProcess(MOVED_ANSWERS, delta, EVIDENCE_HALF_LIFE)),
            Disagreement.beyond(
                options.disagreement, tolerance, delta, DISAGREEMENT_HALF_LIFE, options.familiar
            ),
            BelowSource(tolerance),
            Runaway.within(options.reach, weights),
            **kept,
        )

    @property
    def processes(self) -> dict[str, EProcess]:
        """The e-processes by the names of their triggers."""
        return {
            "estimates": self.estimates.process,
            "labels": self.labels.process,
            "collapse": self.collapse.process,
            "disagreement": self.disagreement.process,
        }

    def tests_as(self, options: Options) -> bool:
        """Whether its triggers are those of some options."""
        return self._tested == Watch.fresh(options)._tested

    @property
    def _tested(self) -> list[Any]:
        """The parameters of its triggers."""
        return [
            self.below.tolerance,
            self.disagreement.limit,
            self.disagreement.familiar,
            self.runaway.farthest,
            *((process.epsilon, process.delta, process.half_life) for process in self.processes.values()),
        ]


def decide(options: Options, watch: Watch, seen: Observation) -> tuple[Watch, Decision]:
    """The watch after a batch, and the decision."""
    batch = watch.batch + 1
    watch = replace(
        watch,
        batch=batch,
        largest=max(watch.largest, seen.samples),
        estimates=watch.estimates.after(seen, batch),
        collapse=watch.collapse.after(seen, batch),
        disagreement=watch.disagreement.after(seen, batch),
        below=watch.below.after(seen, batch),
        runaway=watch.runaway.after(seen, batch),
    )
    if not watch.held:
        alarm = _first(watch)
        return (watch, NOTHING) if alarm is None else _act(options, watch, alarm)
    if watch.until is None or batch < watch.until:
        return watch, NOTHING
    alarm = _first(watch)
    if alarm is not None:
        return _act(options, watch, alarm)
    reason = f"the hold has lasted its {options.cool_down} batches without another alarm"
    after = replace(_fresh(options, watch, watch.runaway.weights), held="", until=None)
    return after, Decision("release", "cool-down", reason)


def take_labels(
    options: Options, watch: Watch, counts: Iterable[tuple[int, int, int]], batch: int
) -> tuple[Watch, Decision]:
    """The watch after labels came, and the decision.

    Labels of answers from at or before the last rollback or reset do not count: they are of a model that is
    gone. Nor do labels that come while the adapter is held.

    Args:
        options: of the guard.
        watch: before.
        counts: of each batch of answers: samples that the source model alone had right, that both models or
            none had, and that the adapted model alone had.
        batch: the batch at which they were answered; the first one where there are several.
    """
    if watch.held or batch <= watch.acted:
        return watch, NOTHING
    for source_only, same, adapted_only in counts:
        watch = replace(watch, labels=watch.labels.after(source_only, same, adapted_only, watch.batch))
        if (alarm := watch.labels.alarm) is not None:
            return _act(options, watch, alarm)
    return watch, NOTHING


def request(
    options: Options, watch: Watch, action: Action, reason: str, weights: float = 0.0
) -> tuple[Watch, Decision]:
    """The watch after an action that a person asked for, and the decision.

    Args:
        options: of the guard.
        watch: before.
        action: that was asked for.
        reason: in words.
        weights: the distance of the weights gone back to; for a rollback or reset.
    """
    decision = Decision(action, REQUEST, reason, watch.batch)
    if action == "hold":
        return replace(watch, held=reason, until=None), decision
    if action == "release":
        return replace(
            _fresh(options, watch, watch.runaway.weights), held="", until=None, strikes=0
        ), decision
    if action == "snapshot":
        return watch, decision
    after = replace(_fresh(options, watch, weights), acted=watch.batch)
    return replace(after, origin=watch.batch) if action == "reset" else after, decision


def _first(watch: Watch) -> Alarm | None:
    """The first alarm, the gravest trigger first."""
    by_estimates, by_answers = (watch.below, watch.estimates), (watch.collapse, watch.disagreement)
    triggers = (watch.runaway, watch.labels, *by_estimates, *by_answers)
    alarms = (trigger.alarm for trigger in triggers)
    return next((alarm for alarm in alarms if alarm is not None), None)


def _act(options: Options, watch: Watch, alarm: Alarm) -> tuple[Watch, Decision]:
    """The rung of the ladder that an alarm climbs to."""
    batch, cool_down = watch.batch, options.cool_down
    recent = watch.strikes > 0 and batch - watch.last_alarm <= REMEMBERED * cool_down
    strikes = watch.strikes + 1 if recent else 1
    action = "rollback" if strikes == 1 else "reset"
    until = batch + cool_down if strikes < LAST_RUNG else None
    length = f"for {cool_down} batches" if until else "until a person releases it"
    after = replace(
        _fresh(options, watch, watch.runaway.weights),
        held=alarm.reason,
        until=until,
        strikes=strikes,
        last_alarm=batch,
        origin=batch if action == "reset" else watch.origin,
        acted=batch,
    )
    reason = f"{alarm.reason}; held {length}"
    return after, Decision(action, alarm.trigger, reason, alarm.calm, watch.origin)


def _fresh(options: Options, watch: Watch, weights: float) -> Watch:
    """The watch without its evidence; its place in the stream and on the ladder stays."""
    kept = ("batch", "held", "until", "strikes", "last_alarm", "origin", "acted", "largest")
    return Watch.fresh(options, weights, **{name: getattr(watch, name) for name in kept})
