"""An adapter under guard: it answers as the adapter does, and goes back when learning goes wrong."""

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.adapter import Adapter, Selection
from equipoise.calibration.rehearsal import Estimate
from equipoise.core.given import (
    LastBatch,
    checked_accuracy,
    checked_coverage,
    checked_score,
    logits_given,
    needs_rehearsal,
)
from equipoise.core.lock import CallLock, one_at_a_time
from equipoise.core.record import Step
from equipoise.errors import BatchError, ForgottenRequestError, OptionError, StateError
from equipoise.functional import entropy
from equipoise.json_form import from_json, to_json
from equipoise.metrics.risk_coverage import RiskCoverage
from equipoise.network.forward import logits_of
from equipoise.options import integer, number
from equipoise.production.guard.decider import (
    Action,
    Decision,
    Event,
    Options,
    Watch,
    decide,
    request,
    take_labels,
)
from equipoise.production.guard.log import Log
from equipoise.production.guard.observation import label_counts, observe
from equipoise.production.guard.snapshots import Snapshots

EVENTS = 1000
"""The events that are remembered; the log has all."""


def unlearned_step(adapter: Adapter, logits: Tensor, reason: str, source_accuracy: Estimate | None) -> Step:
    """The record of a batch that an adapter has answered with some logits and not learned from."""
    bits = entropy(logits.detach())
    bits = bits[bits.isfinite()]
    return Step(
        samples=len(logits),
        used=0,
        set_aside=int((~logits.isfinite().all(1)).sum()),
        updated=False,
        reason=reason,
        loss=None,
        entropy=float(bits.mean()) if len(bits) else None,
        temperature=adapter.temperature,
        tau_quantiles=None,
        accuracy=adapter.accuracy,
        source_accuracy=source_accuracy,
        answered_by=adapter.answered_by,
    )


class Guarded:
    """An adapter that is watched over a stream: `guarded(x)` in place of `adapter(x)`.

    Every update of an adapter is checked by itself. The guard watches the sum of them, and acts after a
    batch: it rolls the adapter back to a snapshot and holds it for a while (answers, learns nothing), then,
    on another alarm, resets it to the source model (`guard.decider` has the ladder). The batch that raised
    the alarm is answered again by the model gone back to. Triggers (`guard.triggers`): paired e-processes on
    estimated accuracies and on labels, one on the class histogram of the answers, one on the share of answers
    that differ from the source model's (more than in any rehearsal in which adapting lost nothing), estimates
    below the source model's, and weights or statistics that are not finite or beyond limits.

    Each batch needs the source model's answers: one more forward where the method does not ask it already.
    Reading them waits for the device. Several guarded streams may share an adapter, if the caller restores
    the stream's snapshot before each call. Threads may share a guarded adapter: calls run one after another.

    Args:
        adapter: of one process; `equipoise.create` makes one.
        tolerance: accuracy below the source model's that is tolerated; the share of answers beyond the
            rehearsed one that may differ from the source model's, too.
        delta: the chance that any of the e-processes ever raises a false alarm between two actions.
        cool_down: batches for which the adapter is held after an alarm.
        every: batches between snapshots.
        keep: snapshots kept.
        folder: for the snapshots; memory then has the newest only. None: all are in memory. The guard goes
            back by itself to those that it took, or that a state it loads names; an earlier run's need
            `rollback`.
        log: path of a file of JSON lines to append to, one a batch, for `equipoise.replay`.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        tolerance: float = 0.05,
        delta: float = 0.01,
        cool_down: int = 20,
        every: int = 10,
        keep: int = 8,
        folder: str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an adapter to guard, got {type(adapter).__name__}")
        if adapter.processes > 1:
            raise OptionError("expected an adapter of one process, got one of several that adapt as one")
        rehearsed = adapter.rehearsal
        learned: dict[str, float | None] = {}
        if rehearsed is not None:
            learned = {name: getattr(rehearsed, name) for name in ("disagreement", "familiar", "reach")}
        self._options = Options(
            number("tolerance", tolerance, low=0, high=1),
            number("delta", delta, low=1e-9, high=0.5),
            integer("cool_down", cool_down, low=1),
            **learned,
        )
        self._every = integer("every", every, low=1)
        self._snapshots = Snapshots(integer("keep", keep, low=1), folder)
        self._adapter, self._lock = adapter, CallLock()
        self._watch = Watch.fresh(self._options, adapter.deviation().weights)
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._last: Step | None = None
        self._last_batch: LastBatch | None = None
        self._log = None if log is None else Log(log)
        self._begin_log()

    # ------------------------------------------------------------------ answer

    @one_at_a_time
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calibrated logits of a batch, in the form of the adapter's; it learns from it unless it is held."""
        learns = not self._watch.held
        answer = self._adapter(*args, **kwargs) if learns else self._adapter.predict(*args, **kwargs)
        logits = logits_of(answer)
        step = (self._adapter.last if learns else None) or self._unlearned(logits)
        theirs = step.source_logits
        if theirs is None:
            theirs = self._adapter.source_logits(*args, **kwargs)
        seen = observe(self._adapter, logits.detach(), theirs, step, learned=learns)
        self._watch, decision = decide(self._options, self._watch, seen)
        self._last = replace(step, source_logits=theirs)
        self._do(decision, {"observation": to_json(seen)})
        if decision.action in ("rollback", "reset"):
            answer = self._adapter.predict(*args, **kwargs)
            undone = f"undone by the guard: {decision.reason}"
            self._last = replace(self._unlearned(logits_of(answer)), reason=undone, source_logits=theirs)
        elif learns and self._watch.batch % self._every == 0:
            self._snapshots.take(self._adapter, self._watch.batch)
        self._last_batch = LastBatch.of(args, kwargs, logits_of(answer))
        return answer

    @one_at_a_time
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Calibrated logits of a batch with the adapter as it is; nothing is learned or watched."""
        return self._adapter.predict(*args, **kwargs)

    @one_at_a_time
    def predict_proba(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated probabilities (N, C) of a batch, as the adapter's; nothing is learned or watched."""
        return self._adapter.predict_proba(*args, **kwargs)

    # ------------------------------------------------------------------ decide

    def sets(
        self,
        *args: Any,
        coverage: float = 0.9,
        score: str = "lac",
        logits: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Prediction sets as the adapter's (`Adapter.sets`); inputs are answered and watched as by a call."""
        with self._lock:
            score, coverage = checked_score(score), checked_coverage(coverage)  # before anything is learned
            given = self._given("sets", args, kwargs, logits)
            return self._adapter.sets(coverage=coverage, score=score, logits=given)

    def coverage(self, coverage: float = 0.9, score: str = "lac") -> Estimate:
        """The estimated coverage of sets, as the adapter's (`Adapter.coverage`)."""
        return self._adapter.coverage(coverage, score)

    @property
    def calibration_gap(self) -> Estimate:
        """The estimated gap between confidence and accuracy, as the adapter's (`Adapter.calibration_gap`)."""
        return self._adapter.calibration_gap

    def decide(
        self, *args: Any, accuracy: float = 0.95, logits: Tensor | None = None, **kwargs: Any
    ) -> Selection:
        """Answers to act upon, as the adapter's (`Adapter.decide`); inputs are answered and watched."""
        with self._lock:
            accuracy = checked_accuracy(accuracy)  # before anything is learned
            given = self._given("decide", args, kwargs, logits)
            return self._adapter.decide(accuracy=accuracy, logits=given)

    def curve(self) -> RiskCoverage:
        """The estimated risk over the share acted upon, as the adapter's (`Adapter.curve`)."""
        return self._adapter.curve()

    def _given(
        self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], logits: Tensor | None
    ) -> Tensor:
        rehearsal = self._adapter.rehearsal
        if rehearsal is None:
            raise needs_rehearsal(call, self._adapter.name)
        classes, source, last = rehearsal.classes, self._adapter.source, self._last_batch
        return logits_given(args, kwargs, logits, classes=classes, source=source, last=last, answer=self)

    def _unlearned(self, logits: Tensor) -> Step:
        reason = f"held: {self._watch.held}"
        return unlearned_step(self._adapter, logits, reason, self._adapter.source_accuracy)

    # ------------------------------------------------------------------ labels

    @one_at_a_time
    def label(
        self,
        target: Tensor,
        ids: Iterable[int] | Tensor | None = None,
        *,
        logits: Tensor | None = None,
        source_logits: Tensor | None = None,
        batch: int | None = None,
    ) -> int:
        """Take labels that came late; returns how many count for the adapter's estimates (`Adapter.label`).

        With the logits that were answered and those of the source model they also feed an exact test, one
        loss a call, and may lead to an action. A call with more rows than the largest batch so far is a
        backlog: each piece of that many rows, in order, is a loss. Rows with logits that are not finite,
        labels of answers from before the last rollback or reset, and labels that come while the adapter is
        held do not count in it. An adapter without a rehearsal estimates nothing, and has the test alone.
        With logits, labels from before the last rollback or reset do not reach the adapter either.

        Args:
            target: labels (N).
            ids: the numbers of the samples, as `guarded.last.ids` and `ask` have them; None: those of the
                last batch, unless logits are given. A batch that was not learned from (held, or undone) has
                none; ForgottenRequestError.
            logits: that were answered, (N, C), in place of ids.
            source_logits: those of the source model, (N, C); `guarded.last` has those of the last batch.
            batch: `guarded.batch` after the call that answered, the first one of a backlog; None: now.
        """
        at = self.batch if batch is None else integer("batch", batch, low=0)
        if ids is None and logits is None:
            ids = self._last.ids if self._last else range(0)
            if not ids:
                raise ForgottenRequestError(
                    "expected labels of a batch that was learned from, got them for one that was not, or "
                    "before any: pass the logits that were answered, guarded.label(targets, logits=logits)"
                )
        if logits is None or source_logits is None:
            if logits is not None and at <= self._watch.acted:
                return 0
            return self._adapter.label(target, ids, logits=logits, source_logits=source_logits)
        if ids is not None:
            raise OptionError("expected ids of samples or the logits that were answered, got both")
        target, own, theirs = (torch.as_tensor(t).detach().cpu() for t in (target, logits, source_logits))
        if own.ndim != 2 or own.shape != theirs.shape or target.shape != own.shape[:1]:
            shapes = ", ".join(str(tuple(t.shape)) for t in (target, own, theirs))
            raise BatchError(
                f"expected labels (N), logits (N, C) and the source model's logits (N, C), got {shapes}"
            )
        counted = 0
        if self._adapter.rehearsal is not None and at > self._watch.acted:
            counted = self._adapter.label(target, logits=own, source_logits=theirs)
        counts = label_counts(target, own, theirs, self._watch.largest or len(target))
        self._watch, decision = take_labels(self._options, self._watch, counts, at)
        self._do(decision, {"labels": counts, "batch": at})
        return counted

    @one_at_a_time
    def ask(self, count: int) -> Tensor:
        """The numbers of recent samples to have labelled (`Adapter.ask`)."""
        return self._adapter.ask(count)

    @property
    def labels(self) -> int:
        """The labels that count for the adapter's estimates."""
        return self._adapter.labels

    # ------------------------------------------------------------------ act

    @one_at_a_time
    def hold(self, reason: str = "asked for") -> None:
        """Answer and learn nothing, until `release`."""
        self._ask("hold", reason)

    @one_at_a_time
    def release(self) -> None:
        """Learn again, and forget alarms."""
        self._ask("release", "asked for")

    @one_at_a_time
    def reset(self, reason: str = "asked for") -> None:
        """Go back to the source model; a hold stays, and so does the count of alarms."""
        self._adapter.reset()
        self._last_batch = None
        self._ask("reset", reason)

    @one_at_a_time
    def rollback(self, steps: int = 1) -> str:
        """Go back by a number of snapshots, 1 the newest; returns the name of the one gone back to.

        A damaged one is passed over, and the next older one taken; StateError where there is none.
        """
        name, note = self._snapshots.restore(
            self._adapter, self._snapshots.back(integer("steps", steps, low=1))
        )
        if name is None:
            raise StateError(f"expected a snapshot that can be read, got none: {note}")
        self._last_batch = None
        self._ask("rollback", "asked for", "; ".join(filter(None, (f"to {name}", note))))
        return name

    @one_at_a_time
    def snapshot(self) -> str:
        """Take a snapshot now; returns its name."""
        name = self._snapshots.take(self._adapter, self._watch.batch)
        self._ask("snapshot", "asked for", name)
        return name

    def _ask(self, action: Action, reason: str, note: str = "") -> None:
        """Record an action that a person asked for and that is done."""
        weights = self._adapter.deviation().weights if action in ("rollback", "reset") else 0.0
        self._watch, decision = request(self._options, self._watch, action, reason, weights)
        self._do(decision, {"request": action, "reason": reason, "weights": weights}, note)

    def _do(self, decision: Decision, line: Mapping[str, Any], note: str | None = None) -> None:
        """Carry out a decision, remember it, and write the line that led to it.

        Args:
            decision: the decision.
            line: the numbers that led to it.
            note: the particulars of an action that is done already.
        """
        values = {**line, "decision": decision.to_json()}
        if decision.action != "none":
            action, note = (decision.action, note) if note is not None else self._carried_out(decision)
            done: dict[str, Any] = {"time": time.time(), "action": action, "note": note}
            self._events.append(decision.event(self._watch.batch, **done))
            values["done"] = done
        if self._log is not None:
            self._log.write(values)

    def _carried_out(self, decision: Decision) -> tuple[str, str]:
        """The action that came of a decision, and its particulars in words."""
        if decision.action == "reset":
            self._adapter.reset()
        if decision.action != "rollback":
            return decision.action, ""
        candidates = self._snapshots.between(decision.origin, decision.calm)
        name, note = self._snapshots.restore(self._adapter, candidates)
        if name is not None:
            return "rollback", "; ".join(filter(None, (f"to {name}", note)))
        self._adapter.reset()
        return "reset", "; ".join(filter(None, ("no snapshot is older than the evidence", note)))

    # ------------------------------------------------------------------ facts

    @property
    def adapter(self) -> Adapter:
        """The adapter."""
        return self._adapter

    @property
    def batch(self) -> int:
        """The batches so far; after a call, the number of its batch, for `label`."""
        return self._watch.batch

    @property
    def holding(self) -> bool:
        """Whether the adapter answers and learns nothing."""
        return bool(self._watch.held)

    @property
    def events(self) -> tuple[Event, ...]:
        """The actions so far, oldest first; the last thousand."""
        return tuple(self._events)

    @property
    def snapshots(self) -> tuple[str, ...]:
        """The names of the snapshots, oldest first."""
        return self._snapshots.names

    @property
    def last(self) -> Step | None:
        """The record of the last batch that came through the guard, always with the source model's logits."""
        return self._last

    @property
    def accuracy(self) -> Estimate | None:
        """The adapter's estimated accuracy."""
        return self._adapter.accuracy

    @property
    def source_accuracy(self) -> Estimate | None:
        """The source model's estimated accuracy."""
        return self._adapter.source_accuracy

    @property
    def temperature(self) -> float:
        """The adapter's temperature."""
        return self._adapter.temperature

    @one_at_a_time
    def status(self) -> str:
        """The state of the guard in a few lines of text."""
        watch, names = self._watch, self.snapshots
        if not watch.held:
            mode = "learning"
        elif watch.until is None:
            mode = f"held until `release`: {watch.held}"
        else:
            mode = f"held until batch {watch.until}: {watch.held}"
        evidence = ", ".join(f"{name} {max(p.evidence, 0.0):.0%}" for name, p in watch.processes.items())
        lines = [
            f"batch {watch.batch}: {mode}",
            f"evidence against the adapted model, of what an alarm takes: {evidence}",
            f"{len(names)} snapshot{'' if len(names) == 1 else 's'}"
            + (f", the newest {names[-1]}" if names else ""),
            f"last action: {self._events[-1]}" if self._events else "",
            self._snapshots.trouble,
            "" if self._log is None else self._log.trouble,
        ]
        return "\n".join(filter(None, lines))

    # ------------------------------------------------------------------ state

    @one_at_a_time
    def state(self) -> dict[str, Any]:
        """The guard's own state, for JSON; that of the adapter is `adapter.state_dict()`."""
        return {
            "watch": to_json(self._watch),
            "events": to_json(list(self._events)),
            "snapshots": list(self._snapshots.own),
        }

    @one_at_a_time
    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned; decisions go on as if there had been no break.

        StateError where the state is of a guard with another tolerance, delta or rehearsal.
        Snapshots taken after a later batch than that of the state are dropped: a rollback goes back only.
        """
        try:
            loaded = from_json(Watch, state["watch"])
            events = [from_json(Event, event) for event in state["events"]]
            names = [str(name) for name in state["snapshots"]]
        except (KeyError, TypeError) as error:
            raise StateError(f"expected the state of a guard, got another: {error!r}") from error
        if not loaded.tests_as(self._options):
            own = f"tolerance {self._options.tolerance:g} and delta {self._options.delta:g}"
            raise StateError(
                f"expected the state of a guard with {own} on an adapter of the same rehearsal, got one with "
                "another of them; make the guard as that one was made, or begin without its state"
            )
        self._watch = loaded
        self._events = deque(events, maxlen=EVENTS)
        self._snapshots.drop_after(self._watch.batch)
        self._snapshots.adopt(names)
        self._begin_log()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Guarded":
        """A copy; OptionError where snapshots or log are files, which two guards cannot share."""
        if self._log is not None or self._snapshots.on_disk:
            raise OptionError("expected a guard without folder and log to copy: two guards cannot share them")
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(deepcopy(self.__dict__, memo))
        return made

    def _begin_log(self) -> None:
        if self._log is not None:
            self._log.begin(to_json(self._options), to_json(self._watch))
