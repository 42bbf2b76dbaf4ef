"""The state of a monitor as plain numbers and tensors, and back."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import StateError
from equipoise.production.monitor.history import ROW_COLUMNS, History
from equipoise.production.monitor.labels import Requests
from equipoise.production.monitor.samples import RecentSamples, Rows, row_type
from equipoise.production.monitor.sums import Sums
from equipoise.production.monitor.truth import Truth, nothing

if TYPE_CHECKING:
    from equipoise.production.monitor.monitor import Monitor

_VERSION = 1
_TRUTH = ("truth.bins", "truth.surprise", "truth.estimate")


def saved(monitor: "Monitor") -> dict[str, Any]:
    """Everything that a monitor knows: {"numbers": plain JSON, "tensors": tensors by name}."""
    recent, truth = monitor._recent, monitor._forgotten_truth
    classes = len(monitor._totals.histogram)
    numbers = {
        "version": _VERSION,
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
    tensors = {name: getattr(truth, name.removeprefix("truth.")) for name in _TRUTH}
    if recent is not None:
        tensors |= _columns("rows.", recent.rows)
        tensors["history"] = torch.from_numpy(monitor._history.table())
    late = monitor._labelled_late
    if late is not None:
        tensors |= _columns("late.", late.rows)
    return {"numbers": numbers, "tensors": tensors}


def loaded(monitor: "Monitor", state: Mapping[str, Any]) -> None:
    """Give a monitor what `saved` returned; nothing has changed where it is refused."""
    try:
        numbers, tensors = state["numbers"], state["tensors"]
        options = {name: numbers[name] for name in ("version", "window", "keep")}
        own = {"version": _VERSION, "window": monitor.window, "keep": monitor.keep}
        if options != own:
            raise StateError(f"expected the state of a monitor with {own}, got {options}")
        parts: dict[str, Any] = {
            **_rows(numbers, tensors, monitor.keep),
            "_labelled_late": _late(tensors, monitor.window),
            "_requests": Requests([(name, first, count) for name, first, count in numbers["requests"]]),
            "_totals": Sums.from_json(numbers["totals"]),
            "_reference": Sums.from_json(numbers["reference"]),
            "_forgotten_truth": _truth(tensors),
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


def _rows(numbers: Mapping[str, Any], tensors: Mapping[str, Tensor], keep: int) -> dict[str, Any]:
    """The remembered samples and the curves, of which a monitor of nothing has none."""
    if not numbers["classes"]:
        return {"_recent": None, "_history": History()}
    rows = _table("rows.", tensors, numbers["classes"])
    table = tensors["history"].numpy().reshape(-1, len(ROW_COLUMNS) + numbers["classes"])
    return {"_recent": RecentSamples(keep, rows, int(numbers["first"])), "_history": History(table.copy())}


def _late(tensors: Mapping[str, Tensor], window: int) -> RecentSamples | None:
    """The samples that were forgotten before their labels came."""
    if "late.logits" not in tensors:
        return None
    return RecentSamples(window, _table("late.", tensors, tensors["late.logits"].shape[1]))


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
