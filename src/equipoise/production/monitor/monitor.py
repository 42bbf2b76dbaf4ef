"""The monitor: gauges of a stream without labels, and with them when they come."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration.labels import checked_labels
from equipoise.core.lock import CallLock, one_at_a_time
from equipoise.core.record import Step
from equipoise.errors import ForgottenRequestError, OptionError, StateError
from equipoise.network.forward import logits_of
from equipoise.production.guard.guarded import Guarded
from equipoise.production.monitor.gauges import (
    ROW_COLUMNS,
    History,
    Sums,
    Truth,
    gauges_of,
    labelled,
    nothing,
    summed,
    total_variation,
    truth_gauges,
    truth_of,
)
from equipoise.production.monitor.samples import (
    UNKNOWN,
    RecentSamples,
    Rows,
    row_type,
    rows_of,
    samples_frame,
    votes,
)
from equipoise.production.monitor.writers import Writer, Writers

if TYPE_CHECKING:
    import pandas as pd

_VERSION = 1
_TRUTH = ("truth.bins", "truth.surprise", "truth.estimate")

WRITES_A_WINDOW = 10
"""Gauges are written once for each tenth of a window: two in a row share nine tenths of their samples."""

READS_A_WINDOW = 2
"""What decisions are worth is read once for each half of a window: it costs as much as an estimate does."""

SET_COVERAGE, ACTED_ACCURACY = 0.9, 0.95
"""The coverage of the sets, and the accuracy of the answers acted upon, that gauges are of."""

_Event = TypeVar("_Event")


class Acted(Protocol):
    """An event of a guard, as far as a monitor reads it."""

    @property
    def action(self) -> str:
        """The name of the action."""


class _Given(NamedTuple):
    """What the adapter calls the answer to a request.

    Attributes:
        ids: the numbers of the samples (`Step.ids`).
        batch: the guard's number of the batch; None without a guard.
    """

    ids: range
    batch: int | None


def events_after(events: Sequence[_Event], last: _Event | None) -> list[_Event]:
    """The events that follow the `last` one, oldest first; all of them where it is not among them."""
    return list(takewhile(lambda event: event != last, reversed(events)))[::-1]


class Monitor:
    """Gauges of a stream of answers: per window, since the start, and against labels that come late.

    Wraps an adapter, or a guarded one: `monitor(x)` in place of `adapter(x)` returns the same answer. Without
    one, `observe` takes logits and records of steps. Threads may share a monitor.

    Args:
        adapter: an `Adapter`, or a `Guarded` around one; None to call `observe`.
        window: the samples that `gauges` are of. The estimated accuracy itself is that of the adapter, over
            its own window of a few hundred samples.
        writers: receive the gauges once for each tenth of a window (`monitor.Writer`). A writer that
            fails is reported once to the log and counted; answers go on.
        stream: the name of the stream, a column of `frame`.
        keep: the last samples that labels may still come for, and that `frame` has; at least the window. A
            sample takes about 100 bytes and 4 for each class.

    >>> import torch
    >>> monitor = Monitor(window=2)
    >>> monitor.observe(torch.tensor([[4.0, 0.0], [0.0, 2.0]]), None, request="a")
    >>> monitor.label("a", [0, 0])
    1
    >>> round(monitor.gauges()["confidence"], 3), monitor.gauges()["true_accuracy"]
    (0.931, 0.5)
    """

    def __init__(
        self,
        adapter: Any = None,
        *,
        window: int = 500,
        writers: Iterable[Writer] = (),
        stream: str = "",
        keep: int = 10_000,
    ) -> None:
        for name, value in (("window", window), ("keep", keep)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"expected {name} to be an int of at least 1, got {value!r}")
        if adapter is not None and not hasattr(adapter, "last"):
            raise OptionError(f"expected an adapter, or a guarded one, got {type(adapter).__name__}")
        if keep < window:
            raise OptionError(f"expected keep to be at least the window of {window}, got {keep}")
        self.adapter, self.window, self.stream, self.keep = adapter, window, stream, keep
        self._writers = Writers(writers)
        self._lock, self._calls = CallLock(), CallLock()
        self._seen: Any = None
        self._counted: Acted | None = None
        self._fresh_events()  # those before the monitor are not its
        self._forget()

    def _forget(self) -> None:
        self._recent: RecentSamples | None = None
        self._labelled_late: RecentSamples | None = None
        self._requests: dict[str, tuple[int, int]] = {}  # the first row and their number, oldest first
        self._given: dict[str, _Given] = {}  # of those of them whose answers the adapter has numbered
        self._history, self._totals = History(), Sums()
        self._forgotten_truth = nothing()
        self._reference: Sums = Sums()
        self._events: Counter[str] = Counter()
        self._recent_events: deque[tuple[int, str]] = deque()
        self._statistics_shift: float | None = None
        self._decisions: dict[str, float] = {}
        self._decided = -self.window  # the samples when these were read
        self._batches, self._written = 0, 0

    # ------------------------------------------------------------------ observe

    def __call__(self, *args: Any, request: str | None = None, **kwargs: Any) -> Any:
        """The adapter's answer to a batch, observed; `request` is an id for labels that come later."""
        if self.adapter is None:
            raise OptionError("expected a monitor of an adapter, Monitor(adapter): this one has none to call")
        with self._calls:
            answer = self.adapter(*args, **kwargs)
            step = self.adapter.last
            fresh = None if step is self._seen else step  # a batch that was only predicted has no record
            self._seen = step
            self.observe(logits_of(answer), fresh, request=request, events=self._fresh_events())
        return answer

    def _fresh_events(self) -> list[Acted]:
        """The events of a guarded adapter that are not counted yet; they are from now on."""
        events: Sequence[Acted] = getattr(self.adapter, "events", ())
        fresh = events_after(events, self._counted)
        self._counted = events[-1] if events else None
        return fresh

    def observe(
        self,
        logits: Tensor,
        step: Step | None,
        *,
        request: str | Mapping[str, int] | None = None,
        events: Iterable[Acted] = (),
    ) -> None:
        """Take in the answer to a batch.

        Args:
            logits: calibrated, (N, C); a row with NaN, or without a finite maximum, counts as set aside.
            step: the record of the batch, `adapter.last`; None where there is none.
            request: an id for labels; or, where a batch joins several requests, the number of rows of each
                in their order, by id. A later request of the same id takes its place.
            events: the events of the guard since the last batch.
        """
        fresh, shift = rows_of(logits, step, time.time()), self._read_statistics()
        with self._lock:
            ranges = self._checked_requests(request, fresh)
            self._statistics_shift = shift
            self._take(fresh, ranges)
            self._note_given(step, ranges, len(fresh))
            self._read_decisions(step)
            for event in events:
                self._events[event.action] += 1
                self._recent_events.append((self._totals.samples, event.action))
            due = self._totals.samples - self._written >= max(1, self.window // WRITES_A_WINDOW)
            if due:
                self._written = self._totals.samples
            values = self.gauges() if due and self._writers else None
            step_number = self._totals.samples
        if values is not None:
            self._writers.log(values, step_number)

    def _read_statistics(self) -> float | None:
        inner = self._inner
        return None if inner is None else inner.statistics_shift()

    @property
    def _inner(self) -> Adapter | None:
        """The adapter, or the one that is guarded; a tempered one is an adapter itself."""
        own = self.adapter
        inner = own if isinstance(own, Adapter) else getattr(own, "adapter", None)
        return inner if isinstance(inner, Adapter) else None

    def _read_decisions(self, step: Step | None) -> None:
        """Read what decisions about the answers are worth, if the adapter gave them; twice a window."""
        inner = self._inner
        if step is None or inner is None or inner.rehearsal is None:
            return
        due = self._totals.samples - self._decided >= max(1, self.window // READS_A_WINDOW)
        if not due or step.answered_by != inner.answered_by:
            return
        expected = inner.expectations()
        covered, low, high = expected.coverage("lac", SET_COVERAGE)
        share = expected.selected(ACTED_ACCURACY).share
        self._decided = self._totals.samples
        ends = {"coverage_low": low, "coverage_high": high}
        self._decisions = {"coverage": covered, **ends, "answered_share": share}

    def _checked_requests(
        self, request: str | Mapping[str, int] | None, fresh: Rows
    ) -> list[tuple[str, int]]:
        """The ids with their numbers of rows; an error where they are not those of the batch."""
        self._check_classes(fresh)
        if request is None:
            return []
        ranges = list(request.items()) if isinstance(request, Mapping) else [(request, len(fresh))]
        if sum(rows for _, rows in ranges) != len(fresh) or any(rows < 0 for _, rows in ranges):
            raise OptionError(f"expected requests of {len(fresh)} rows in all, got {dict(ranges)}")
        return ranges

    def _check_classes(self, fresh: Rows) -> None:
        expected, came = len(self._totals.histogram), fresh.dtype["logits"].shape[0]
        if expected and came != expected:
            raise OptionError(f"expected logits of {expected} classes as before, got {came}")

    def _take(self, fresh: Rows, ranges: Sequence[tuple[str, int]]) -> None:
        if not len(fresh):
            return
        if self._recent is None:
            self._recent = RecentSamples(self.keep, fresh[:0])
        first = self._recent.last
        for name, rows in ranges:
            self._requests.pop(name, None)  # one that comes again is the newest
            self._requests[name] = first, rows
            first += rows
        self._forgotten_truth += truth_of(self._recent.append(fresh))
        while self._requests and next(iter(self._requests.values()))[0] < self._recent.first:
            name = next(iter(self._requests))
            self._requests.pop(name)
            self._given.pop(name, None)
        sums = summed(fresh)
        self._totals.add(sums)
        if self._reference.answered < self.window:
            self._reference.add(sums)
        self._batches += 1
        while self._recent_events and self._recent_events[0][0] <= self._totals.samples - self.window:
            self._recent_events.popleft()
        self._add_row(float(fresh["time"][-1]))

    def _note_given(self, step: Step | None, ranges: Sequence[tuple[str, int]], samples: int) -> None:
        """Note what the adapter calls the answers to requests; nothing where the record has no numbers."""
        batch = self.adapter.batch if isinstance(self.adapter, Guarded) else None
        ids = range(0) if step is None else step.ids
        numbered, start = len(ids) == samples, 0
        for name, rows in ranges:
            own = ids[start : start + rows] if numbered else range(0)
            self._given[name] = _Given(own, batch)
            start += rows

    def _add_row(self, now: float) -> None:
        sums, classes = summed(self._window_rows), len(self._totals.histogram)
        numbers = {**gauges_of(sums), **self._latest_estimate()}
        named = {"low": "accuracy_low", "high": "accuracy_high", "inside": "accuracy_inside"}
        numbers |= {short: numbers[name] for short, name in named.items() if name in numbers}
        numbers |= {"index": self._batches, "time": now, "samples": self._totals.samples}
        self._history.add(numbers, sums.shares if sums.answered else np.full(classes, np.nan))

    # ------------------------------------------------------------------ labels

    def label(self, request: str, labels: Sequence[int] | Tensor, *, logits: Tensor | None = None) -> int:
        """Take the labels of a request, one for each of its rows; returns how many answers were right.

        They may come late, in any order, and again: the last ones count. A row without an answer is counted
        neither right nor wrong. The first time, the adapter gets them too: one with a rehearsal for its
        estimates, a guarded one also for its test, where the source model was asked. One of several processes
        gets none, and no adapter those of answers from before its last reset, restore, load or move.

        A request that was never given, or is no longer among the last `keep` samples, raises
        ForgottenRequestError; with the `logits` (N, C) of its answer its labels count all the same, without
        an estimate beside them, and each time that they come.
        """
        right, fresh = self._take_labels(request, labels, logits)
        if fresh is not None:
            self._pass_on(request, fresh)
        return right

    def observe_labels(
        self, request: str, labels: Sequence[int] | Tensor, *, logits: Tensor | None = None
    ) -> int:
        """Take labels as `label` does, for a caller that gives them to the adapter itself."""
        return self._take_labels(request, labels, logits)[0]

    @one_at_a_time
    def _take_labels(
        self, request: str, labels: Sequence[int] | Tensor, logits: Tensor | None
    ) -> tuple[int, Rows | None]:
        """Note labels; returns how many answers were right, and the rows that got their first ones."""
        if logits is not None and self._requests.get(request) is None:
            return self._label_late(logits, labels), None
        rows = self._rows_of_request(request)
        target = checked_labels(labels, len(rows), len(self._totals.histogram)).numpy()
        first_time = bool((rows["label"] == UNKNOWN).all())
        rows["label"] = target
        return int((rows["predicted"] == target).sum()), rows.copy() if first_time else None

    def _pass_on(self, request: str, taken: Rows) -> None:
        """Give labels to the adapter, where it takes them."""
        own, given = self.adapter, self._given.get(request)
        target = torch.from_numpy(taken["label"].astype(np.int64))
        asked = bool((taken["source"] != UNKNOWN).any())
        answers: dict[str, Any] = {
            "logits": torch.from_numpy(taken["logits"].copy()),
            "source_logits": torch.from_numpy(votes(taken)) if asked else None,
        }
        if isinstance(own, Adapter):
            if own.rehearsal is not None and own.processes == 1:
                _tell(own, target, range(0) if given is None else given.ids, answers)
        elif asked and hasattr(own, "label"):
            batch = {} if given is None or given.batch is None else {"batch": given.batch}
            own.label(target, **answers, **batch)

    def _label_late(self, logits: Tensor, labels: Sequence[int] | Tensor) -> int:
        rows = rows_of(logits, None, time.time())
        self._check_classes(rows)
        rows["label"] = target = checked_labels(labels, len(rows), rows.dtype["logits"].shape[0]).numpy()
        if self._labelled_late is None:
            self._labelled_late = RecentSamples(self.window, rows[:0])
        self._labelled_late.append(rows)
        self._forgotten_truth += truth_of(rows)
        return int((rows["predicted"] == target).sum())

    def _rows_of_request(self, request: str) -> Rows:
        """The rows of a request: a view, in which labels can be written."""
        found = self._requests.get(request)
        if found is None or self._recent is None:
            raise ForgottenRequestError(
                f"expected the id of a request within the last {self.keep} samples, got {request!r}"
            )
        first, count = found
        return self._recent.rows[first - self._recent.first :][:count]

    # ------------------------------------------------------------------ read

    @property
    def _window_rows(self) -> Rows:
        return np.zeros(0, row_type(0)) if self._recent is None else self._recent.rows[-self.window :]

    def _latest_estimate(self) -> dict[str, float]:
        """The last estimate in the window; it is over the adapter's own window already."""
        rows = self._window_rows
        known = np.flatnonzero(~np.isnan(rows["accuracy"]))
        if not len(known):
            return {}
        last = rows[known[-1]]
        names = {"accuracy": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
        found = {gauge: float(last[name]) for name, gauge in names.items()}
        found["accuracy_inside"] = float(last["inside"])
        if not np.isnan(last["source_accuracy"]):
            found["source_accuracy"] = float(last["source_accuracy"])
        return found

    @one_at_a_time
    def gauges(self) -> dict[str, float]:
        """The gauges of the last window, by name (docs/reference/monitor.md has the list).

        Those of labels are of the last `window` samples that have one; samples that are no longer remembered
        go before all others.
        """
        rows = self._window_rows
        sums = summed(rows)
        found = {**gauges_of(sums), **self._latest_estimate()}
        if "accuracy" in found and "confidence" in found:
            found["calibration_gap"] = found["confidence"] - found["accuracy"]
        found |= self._drift(sums)
        if self._statistics_shift is not None:
            found["statistics_shift"] = self._statistics_shift
        if self._totals.samples - self._decided < self.window:
            found |= self._decisions
        for action, count in Counter(action for _, action in self._recent_events).items():
            found[f"events_{action}"] = float(count)
        found["labels_seen"] = float(self._labels_seen)
        return {**found, **truth_gauges(truth_of(self._labelled_rows[-self.window :]))}

    @property
    def _labels_seen(self) -> int:
        """The number of labelled answers since the start; they are counted, and not summed up again."""
        remembered = 0 if self._recent is None else len(labelled(self._recent.rows))
        return self._forgotten_truth.labels + remembered

    @property
    def _labelled_rows(self) -> Rows:
        """The samples with labels: those that were forgotten before their labels came, then the others."""
        kept = [each.rows for each in (self._labelled_late, self._recent) if each is not None]
        return labelled(np.concatenate(kept)) if kept else self._window_rows

    @one_at_a_time
    def totals(self) -> dict[str, float]:
        """The same gauges since the start; estimates are means over the samples.

        `batches` and `writer_failures` are counted here alone.
        """
        remembered = nothing() if self._recent is None else truth_of(self._recent.rows)
        return {
            **gauges_of(self._totals),
            **self._drift(self._totals),
            **{f"events_{action}": float(count) for action, count in self._events.items()},
            **truth_gauges(self._forgotten_truth + remembered),
            "batches": float(self._batches),
            "writer_failures": float(self._writers.failures),
        }

    def _drift(self, sums: Sums) -> dict[str, float]:
        """The distance of the classes from those of the start, once a window of them is known."""
        if not sums.answered or self._reference.answered < self.window:
            return {}
        return {"class_shift": total_variation(sums.shares, self._reference.shares)}

    @one_at_a_time
    def rows(self, since: int = 0) -> list[dict[str, Any]]:
        """The curves: a row after each batch with `index` > since, oldest first; older ones are thinned.

        At most 512. A row has index, time, samples (since the start), accuracy, low, high, inside,
        source_accuracy, confidence, temperature, entropy, agreement and histogram; None where there is none.
        """
        return self._history.since(since)

    @one_at_a_time
    def frame(self) -> "pd.DataFrame":
        """The last `keep` samples as a pandas frame, one row each; needs pandas.

        Columns: timestamp (UTC), stream, request, prediction, confidence, entropy, source_prediction, target
        (missing until labels come), estimated_accuracy, temperature, and probability_0 and so on: as NannyML
        and Evidently take them.
        """
        rows, first = (None, 0) if self._recent is None else (self._recent.rows, self._recent.first)
        return samples_frame(rows, self._requests, first, self.stream)

    # ------------------------------------------------------------------ state

    @one_at_a_time
    def state(self) -> dict[str, Any]:
        """Everything the monitor knows: {"numbers": plain JSON, "tensors": tensors by name}."""
        recent, late = self._recent, self._labelled_late
        numbers = {
            **self._options,
            "classes": len(self._totals.histogram),
            "first": 0 if recent is None else recent.first,
            "requests": [(name, first, count) for name, (first, count) in self._requests.items()],
            "totals": self._totals.to_json(),
            "reference": self._reference.to_json(),
            "events": dict(self._events),
            "recent_events": list(self._recent_events),
            "statistics_shift": self._statistics_shift,
            "decisions": self._decisions,
            "decided": self._decided,
            "batches": self._batches,
            "written": self._written,
        }
        tensors = {name: getattr(self._forgotten_truth, name.removeprefix("truth.")) for name in _TRUTH}
        if recent is not None:
            tensors |= _columns("rows.", recent.rows)
            tensors["history"] = torch.from_numpy(self._history.table())
        if late is not None:
            tensors |= _columns("late.", late.rows)
        return {"numbers": numbers, "tensors": tensors}

    @property
    def _options(self) -> dict[str, int]:
        """The numbers that a state must share with the monitor that loads it."""
        return {"version": _VERSION, "window": self.window, "keep": self.keep}

    @one_at_a_time
    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a `state`; StateError, and nothing has changed, where it is not one of such a monitor."""
        try:
            numbers, tensors = state["numbers"], state["tensors"]
            options = {name: numbers[name] for name in self._options}
            if options != self._options:
                raise StateError(f"expected the state of a monitor with {self._options}, got {options}")
            recent, late, history = None, None, History()
            if classes := numbers["classes"]:
                recent = RecentSamples(self.keep, _table("rows.", tensors, classes), int(numbers["first"]))
                table = tensors["history"].numpy().reshape(-1, len(ROW_COLUMNS) + classes)
                history = History(table.copy())
            if "late.logits" in tensors:
                classes = tensors["late.logits"].shape[1]
                late = RecentSamples(self.window, _table("late.", tensors, classes))
            requests = {name: (first, count) for name, first, count in numbers["requests"]}
            totals, reference = (Sums.from_json(numbers[name]) for name in ("totals", "reference"))
            truth, events = _truth(tensors), Counter[str](numbers["events"])
            recent_events = deque((int(at), action) for at, action in numbers["recent_events"])
            shift = numbers["statistics_shift"]
            decisions = {name: float(value) for name, value in numbers.get("decisions", {}).items()}
            decided = int(numbers.get("decided", -self.window))  # earlier versions have neither
            batches, written = int(numbers["batches"]), int(numbers["written"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"not the state of a monitor: {error!r}") from error
        self._recent, self._labelled_late, self._history, self._requests = recent, late, history, requests
        self._given = {}  # the numbers of another process are not those of this one
        self._totals, self._reference, self._forgotten_truth = totals, reference, truth
        self._events, self._recent_events, self._statistics_shift = events, recent_events, shift
        self._decisions, self._decided = decisions, decided
        self._batches, self._written = batches, written
        self._fresh_events()

    def close(self) -> None:
        """Close the writers."""
        self._writers.close()


def _tell(adapter: Adapter, target: Tensor, ids: range, answers: Mapping[str, Any]) -> None:
    """Give an adapter the labels of samples: by their numbers while it remembers these, else by the answers.

    By its number, a label that the adapter has had already replaces that one. Those of answers from before
    the last reset are none of the adapter's.
    """
    if ids and ids.start < adapter.first_id:
        return
    with suppress(ForgottenRequestError):
        if ids:
            adapter.label(target, ids)
            return
    adapter.label(target, **answers)


def _columns(prefix: str, rows: Rows) -> dict[str, Tensor]:
    """The fields of rows as tensors, copied."""
    return {f"{prefix}{name}": torch.from_numpy(rows[name].copy()) for name in rows.dtype.names or ()}


def _table(prefix: str, tensors: Mapping[str, Tensor], classes: int) -> Rows:
    """The inverse of `_columns`."""
    kind = row_type(classes)
    rows = np.zeros(len(tensors[f"{prefix}time"]), kind)
    for name in kind.names or ():
        rows[name] = tensors[f"{prefix}{name}"].numpy()
    return rows


def _truth(tensors: Mapping[str, Tensor]) -> Truth:
    truth = Truth(*(tensors[name].clone() for name in _TRUTH))
    for name, like in vars(nothing()).items():
        if getattr(truth, name).shape != like.shape:
            raise ValueError(f"truth.{name}: expected the shape {tuple(like.shape)}")
    return truth
