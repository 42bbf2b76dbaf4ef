"""Writes the tables of docs/methods.md that are made by programs: costs, from cost.csv, and options.

python -m benchmarks.methods.methods_page
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import equipoise as eq
from benchmarks.pages import fill, table
from equipoise.core.gradient import GradientMethod
from equipoise.factory import options_of
from equipoise.registry import method_class

CSV = Path(__file__).with_name("cost.csv")
SMALL, MIDDLE = "SmallCNN", "MobileNet v1"
_UNMEASURED = "not measured"
Row = dict[Any, Any]


def costs(measured: pd.DataFrame) -> str:
    """Every method with the passes of a step, its time in plain forwards, its memory, and graphs."""
    found = {(row["method"], row["network"], row["device"]): row for row in measured.to_dict("records")}
    gpu = any(device == "cuda" for _, _, device in found)
    rows = []
    for method in eq.list_methods():
        small, middle, graph = (
            found.get((method, *place)) for place in ((SMALL, "cpu"), (MIDDLE, "cpu"), (MIDDLE, "cuda"))
        )
        cells = [_passes(small), _ratio(small), _ratio(middle), _peak(middle), _captured(small, middle)]
        rows.append([f"`{method}`", *cells, *([_ratio(graph)] if gpu else [])])
    head = ["", "samples forwards, backwards", f"{SMALL}, plain forwards", f"{MIDDLE}, plain forwards"]
    head += [f"{MIDDLE}, peak MiB", "CUDA graph", *([f"{MIDDLE} on a GPU"] if gpu else [])]
    return f"{table(head, rows)}\n\n{_conditions(measured)}"


def _passes(row: Row | None) -> str:
    return _UNMEASURED if row is None else f"{row['forwarded']:.3g}, {row['backwards']:g}"


def _ratio(row: Row | None) -> str:
    if row is None:
        return _UNMEASURED
    over, low, high = (_digits(row[name]) for name in ("plain_forwards", "low", "high"))
    return f"**{over}** ({low} to {high}){_few(row)}"


def _few(row: Row) -> str:
    """The size of batches where it is not the usual one."""
    return "" if row["batch"] == 64 else f", batches of {row['batch']:g}"


def _digits(value: float) -> str:
    """Two digits, or a whole number."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _peak(row: Row | None) -> str:
    return _UNMEASURED if row is None else f"{row['peak_mib']:,.0f}{_few(row)}"


def _captured(*rows: Row | None) -> str:
    """Whether a step was captured on one of the networks; memories of samples are full on some only."""
    found = [row["captured"] for row in rows if row is not None]
    return ("yes" if any(found) else "no") if found else _UNMEASURED


def _conditions(measured: pd.DataFrame) -> str:
    """The machines, with the methods of those that measured a few, and the memory of a plain forward."""
    found: dict[str, dict[str, None]] = {}
    for method, machine, torch in measured[["method", "machine", "torch"]].itertuples(index=False):
        found.setdefault(f"{machine} with torch {torch}", {})[f"`{method}`"] = None
    most = max(map(len, found.values()))
    machines = ", ".join(
        where if len(methods) == most else f"{', '.join(methods)} on {where}"
        for where, methods in found.items()
    )
    middle = measured[(measured["network"] == MIDDLE) & (measured["device"] == "cpu")]
    alone = middle["plain_peak_mib"].median()
    plain = f"A plain forward of {MIDDLE} has a peak of {alone:,.0f} MiB beyond the model."
    return f"Measured on {machines}. {plain}"


def options() -> str:
    """Every method with its options and their defaults, but for those that rows above it have."""
    known = {name: {n: str(v) for n, v in options_of(name).items()} for name in eq.list_methods()}
    descending = {name for name in known if issubclass(method_class(name), GradientMethod)}
    usual = _usual(list(known.values()))
    steps = _usual([known[name] for name in sorted(descending)], but=usual)
    rows = [["every adapter", _listed(usual)], ["methods with gradient steps", _listed(steps)]]
    for name, each in known.items():
        above = {**usual, **steps} if name in descending else usual
        own = {option: value for option, value in sorted(each.items()) if above.get(option) != value}
        rows.append([f"`{name}`", _listed(own)])
    return table(["", "options"], rows)


def _usual(known: Sequence[dict[str, str]], but: Collection[str] = ()) -> dict[str, str]:
    """The options that all have, each with its most frequent default."""
    shared = set.intersection(*(set(each) for each in known)) - set(but)
    return {name: Counter(each[name] for each in known).most_common(1)[0][0] for name in sorted(shared)}


def _listed(options: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in options.items()) or "no others"


def parts() -> dict[str, str]:
    """The regions of the page."""
    measured = pd.read_csv(CSV)
    done = measured[measured["failed"].isna()] if "failed" in measured else measured
    return {"costs": costs(done), "options": options()}


if __name__ == "__main__":
    fill("methods.md", parts())
