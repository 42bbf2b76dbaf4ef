"""The decisions of a guard again, from its log alone."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import StateError
from equipoise.production.guard.decider import Decision, Options, Watch, decide, request, take_labels
from equipoise.production.guard.events import Event
from equipoise.production.guard.log import read_lines
from equipoise.production.guard.observation import Observation


def replay(log: str | os.PathLike[str] | Iterable[str]) -> list[Event]:
    """The events of a guarded stream, decided again from the numbers in its log.

    Args:
        log: the path of a log that `Guarded` wrote, or its lines.

    Returns:
        The events, as `Guarded.events` had them.

    Raises:
        StateError: a line is damaged, was changed or is missing before another one, or a decision is not the
            one that was made. That lines are missing at the end cannot be known.
    """
    if isinstance(log, str | os.PathLike):
        try:
            with Path(log).open(encoding="utf-8", newline="\n") as lines:
                return _replayed(lines)
        except UnicodeDecodeError as error:
            raise StateError(f"{log}: expected a log of a guard, got a file that is no text") from error
    return _replayed(log)


def _replayed(lines: Iterable[str]) -> list[Event]:
    options, watch, events = Options(), Watch.fresh(Options()), list[Event]()
    for values in read_lines(lines):
        try:
            if "options" in values:
                options, watch = Options(**values["options"]), Watch.from_json(values["state"])
                continue
            watch, decision = _decided(options, watch, values)
            events += _events(values, watch.batch, decision)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the log has a line that cannot be replayed: {error!r}") from error
    return events


def _decided(options: Options, watch: Watch, values: Mapping[str, Any]) -> tuple[Watch, Decision]:
    if "observation" in values:
        return decide(options, watch, Observation.from_json(values["observation"]))
    if "labels" in values:
        return take_labels(options, watch, values["labels"], values["batch"])
    return request(options, watch, values["request"], values["reason"], values["weights"])


def _events(values: Mapping[str, Any], batch: int, decision: Decision) -> list[Event]:
    """The event of a line, if it has one; StateError if another decision was made."""
    made, again = values.get("decision"), decision.to_json()
    if made != again:
        raise StateError(f"batch {batch}: expected the decision {again}, the log has {made}")
    return [event_of(decision, batch, **values["done"])] if again else []


def event_of(decision: Decision, batch: int, *, time: float, action: Any, note: str) -> Event:
    """The event of a decision that was carried out.

    Args:
        decision: the decision.
        batch: the batch after which it was made.
        time: of the action.
        action: the action in the end: "reset" where there was no snapshot for a "rollback".
        note: the particulars, in words.
    """
    reason = "; ".join(filter(None, (decision.reason, note)))
    return Event(time, batch, action, decision.trigger, reason)
