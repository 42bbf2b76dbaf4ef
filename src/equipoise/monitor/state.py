"""The state of a monitor as plain numbers and tensors, and back."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from equipoise.errors import StateError
from equipoise.monitor.history import COLUMNS, History
from equipoise.monitor.labels import Requests
from equipoise.monitor.samples import RecentSamples, row_type
from equipoise.monitor.sums import Sums
from equipoise.monitor.truth import Truth

if TYPE_CHECKING:
    from equipoise.monitor.monitor import Monitor

VERSION = 1


def saved(monitor: "Monitor") -> dict[str, Any]:
    """Everything that a monitor knows: {"numbers": plain JSON, "tensors": tensors by name}."""
    recent, truth = monitor._recent, monitor._forgotten_truth
    classes = len(monitor._totals.histogram)
    rows = np.zeros(0, row_type(classes)) if recent is None else recent.rows
    fields = {f"rows.{name}": torch.from_numpy(rows[name].copy()) for name in rows.dtype.names or ()}
    numbers = {
        "version": VERSION,
        "window": monitor.window,
        "keep": monitor.keep,
        "classes": classes,
        "first": 0 if recent is None else recent.first,
        "requests": monitor._requests.listed(),
        "totals": monitor._totals.to_json(),
        "reference": monitor._reference.to_json(),
        "events": dict(monitor._events),
        "recent_events": list(monitor._recent_events),
        "statistics_shift": monitor._statistics_shift,
        "batches": monitor._batches,
        "written": monitor._written,
    }
    tensors = {
        **fields,
        "history": torch.from_numpy(monitor._history.table(classes)),
        "truth.bins": truth.bins,
        "truth.surprise": truth.surprise,
        "truth.estimate": truth.estimate,
    }
    return {"numbers": numbers, "tensors": tensors}


def loaded(monitor: "Monitor", state: Mapping[str, Any]) -> None:
    """Give a monitor what `saved` returned; nothing has changed where it is refused."""
    try:
        numbers, tensors = state["numbers"], state["tensors"]
        options = {name: numbers[name] for name in ("version", "window", "keep")}
        own = {"version": VERSION, "window": monitor.window, "keep": monitor.keep}
        if options != own:
            raise StateError(f"expected the state of a monitor with {own}, got {options}")
        kind = row_type(numbers["classes"])
        rows = np.zeros(len(tensors["rows.time"]), kind)
        for name in kind.names or ():
            rows[name] = tensors[f"rows.{name}"].numpy()
        parts: dict[str, Any] = {
            "_recent": RecentSamples(monitor.keep, rows, numbers["first"]) if numbers["classes"] else None,
            "_requests": Requests([(name, first, count) for name, first, count in numbers["requests"]]),
            "_history": History(
                tensors["history"].double().numpy().reshape(-1, len(COLUMNS) + numbers["classes"])
            ),
            "_totals": Sums.from_json(numbers["totals"]),
            "_reference": Sums.from_json(numbers["reference"]),
            "_forgotten_truth": Truth(
                *(tensors[f"truth.{n}"].clone() for n in ("bins", "surprise", "estimate"))
            ),
            "_events": Counter(numbers["events"]),
            "_recent_events": deque((int(at), action) for at, action in numbers["recent_events"]),
            "_statistics_shift": numbers["statistics_shift"],
            "_batches": int(numbers["batches"]),
            "_written": int(numbers["written"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"not the state of a monitor: {error!r}") from error
    vars(monitor).update(parts)
