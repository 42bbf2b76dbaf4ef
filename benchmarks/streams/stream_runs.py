"""Findings of docs/streams.md about single runs, a model in a stream, which means over targets hide."""

from collections import Counter
from typing import Any

import pandas as pd

from benchmarks.results.wording import plain, signed, table, told
from benchmarks.streams.stream_cells import (
    DATA,
    NETWORKS,
    RAW,
    REHEARSED,
    SOURCE,
    Matrix,
    by_mean,
    complete,
    gains,
    matrix,
    mean_of,
    with_rehearsal,
)
from benchmarks.streams.stream_findings import HARM, gained

RUN = ["data", "backbone", "tier", "stream", "target", "seed"]
ALIKE = 0.005
"""Methods whose accuracies differ by no more in every setting are called alike."""


def run_gains(cells: pd.DataFrame, tempering: str) -> pd.DataFrame:
    """The accuracy less that of the source model's raw answers: a row for each run, a column a method."""
    accuracies, source = _by_run(cells, "accuracy", tempering), _by_run(cells, "accuracy", RAW)[SOURCE]
    return accuracies.sub(source.loc[accuracies.index], axis=0)


def _by_run(cells: pd.DataFrame, metric: str, tempering: str) -> pd.DataFrame:
    return cells[cells["tempering"] == tempering].pivot_table(index=RUN, columns="name", values=metric)


def overview_table(cells: pd.DataFrame) -> str:
    """For each method that has all settings: the mean gain, harm in single runs, and calibration."""
    gain, both = gains(cells), with_rehearsal(cells)
    runs = {kind: run_gains(cells, kind) for kind in (RAW, REHEARSED)}
    scores = [matrix(both, metric, kind) for metric in ("ece", "nll") for kind in (RAW, REHEARSED)]
    body = [
        [
            f"`{name}`",
            gained(mean_of(gain, name)),
            *(text for kind in (RAW, REHEARSED) for text in harm(runs[kind], name)),
            *(told(mean_of(each, name)) for each in scores),
        ]
        for name in by_mean(gain)
        if name in complete(gain)
    ]
    head = ["", "gain", "runs that lose", "worst run", "rehearsed: runs that lose", "worst run"]
    return table([*head, "ECE raw", "rehearsed", "NLL raw", "rehearsed"], body)


def harm(runs: pd.DataFrame, name: str) -> list[str]:
    """The share of runs in which a method loses more than .01, and its worst run."""
    return [f"{100 * (runs[name] < HARM).mean():.0f} %", signed(float(runs[name].min()))]


def worst_run(cells: pd.DataFrame, name: str) -> dict[str, str]:
    """The run of rehearsed models in which raw answers of a method lose most, in words and numbers."""
    raw, rehearsed = run_gains(cells, RAW), run_gains(cells, REHEARSED)
    place: Any = raw.loc[rehearsed.index, name].idxmin()
    data, _, _, stream, target, seed = place
    return {
        "worst_run": f"{DATA[str(data)]} {plain(target)}, `{stream}`, seed {seed}",
        "worst_run_raw": signed(float(raw.loc[place, name])),
        "worst_run_rehearsed": signed(float(rehearsed.loc[place, name])),
    }


def rehearsed_by_run(cells: pd.DataFrame) -> dict[str, Any]:
    """The share of runs and methods whose ECE a rehearsal lowers, and the targets of the others."""
    both = with_rehearsal(cells)
    errors = both.pivot_table(index=[*RUN, "name"], columns="tempering", values="ece").reset_index()
    higher = errors[errors[REHEARSED] >= errors[RAW]]
    where = Counter(f"{DATA[d]} {plain(t)}" for d, t in zip(higher["data"], higher["target"], strict=True))
    return {
        "lower_share_by_run": f"{100 - 100 * len(higher) / len(errors):.0f} %",
        "rehearsed_runs": f"{len(errors):,}",
        "not_lower": ", ".join(f"{count} of {target}" for target, count in where.most_common(3)),
    }


def at_target(cells: pd.DataFrame, metric: str, name: str, data: str, target: str) -> str:
    """A metric of a method at one target, raw and rehearsed, as means over its streams and seeds."""
    both = with_rehearsal(cells)
    here = both[(both["data"] == data) & (both["target"] == target) & (both["name"] == name)]
    raw, rehearsed = (here.loc[here["tempering"] == kind, metric].mean() for kind in (RAW, REHEARSED))
    return f"{told(raw)} raw, {told(rehearsed)} rehearsed"


def alike_norm(gain: Matrix, backbone: str) -> dict[str, Any]:
    """The methods that differ from `norm` by little in every setting of a network."""
    here = [by_name for setting, by_name in gain.items() if setting.place.backbone == backbone]
    found = {
        name: max(abs(by_name[name] - by_name["norm"]) for by_name in here)
        for name in complete(gain)
        if name != "norm"
    }
    near = [name for name, off in found.items() if off <= ALIKE]
    return {
        "alike_network": NETWORKS[backbone],
        "alike_settings": len(here),
        "alike_count": len(near),
        "alike": ", ".join(f"`{name}`" for name in near),
        "alike_most": told(max((found[name] for name in near), default=0.0)),
    }


def without_target(cells: pd.DataFrame, data: str, target: str, count: int = 4) -> str:
    """The largest mean gains on a data set without one of its targets."""
    rows = cells[(cells["data"] == data) & (cells["target"] != target)]
    gain = gains(rows)
    order = [name for name in by_mean(gain) if name in complete(gain) and name != SOURCE]
    return ", ".join(f"`{name}` ({signed(mean_of(gain, name))})" for name in order[:count])
