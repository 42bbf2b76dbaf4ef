"""The first lines of the page: one small table, and sentences that need no knowledge of it."""

from statistics import fmean

import pandas as pd

from benchmarks.results.measured import (
    LABELS,
    NAMES,
    POISE,
    SOURCE,
    WAYS,
    Place,
    at,
    best_raw_rival,
    common,
    mean,
    networks,
    of,
)
from benchmarks.results.wording import plain, table, told
from equipoise.research.report.results import Variant
from equipoise.research.report.table import listed

DEC = Variant("dec", "mean")
"""DEC as the paper has it."""
NORM = Variant("norm", "none")
MINIMISERS = ("tent", "eta", "sotta")
"""The rivals that lower the entropy of their answers by gradient steps."""
HARDLY = 0.003
"""A difference of accuracy that is called none."""
RIGHT_AND_SAYS = ("accuracy", "confidence")


def columns(rows: pd.DataFrame) -> tuple[Variant, Variant | None, Variant]:
    """No adaptation, the raw rival with the least ECE, and poise."""
    rival = best_raw_rival(rows)
    return SOURCE, Variant(rival, "none") if rival else None, POISE


def summary_table(cells: pd.DataFrame) -> str:
    """Accuracy and ECE of no adaptation, the raw rival with the least ECE and poise, with the ECE's floor."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        source, rival, poise = columns(rows)
        floor = told(mean(rows, Variant(POISE.name, "oracle"), "ece"))
        ours = [_right(rows, poise), f"**{_ece(rows, poise)}**", floor]
        theirs = [LABELS[rival.name] if rival else "-", _right(rows, rival), _ece(rows, rival)]
        body.append([str(place), _right(rows, source), _ece(rows, source), *theirs, *ours])
    head = ["", "no adaptation: right", "ECE", "raw rival with the least ECE", "right", "ECE"]
    return table([*head, "`poise`: right", "ECE", "floor"], body)


def _right(rows: pd.DataFrame, variant: Variant | None) -> str:
    accuracy = mean(rows, variant, "accuracy") if variant else None
    return "-" if accuracy is None else f"{100 * accuracy:.0f} %"


def _ece(rows: pd.DataFrame, variant: Variant | None) -> str:
    return told(mean(rows, variant, "ece")) if variant else "-"


def apart(cells: pd.DataFrame) -> str:
    """The distance of confidence from accuracy of poise on single streams: its mean, and the largest."""
    rows = of(cells[cells["protocol"] == "online"], POISE).dropna(subset=["confidence"])
    distance = (rows["confidence"] - rows["accuracy"]).abs()
    by_place = distance.groupby([rows["data"], rows["backbone"]]).mean()
    worst = rows.iloc[int(distance.to_numpy().argmax())]
    return (
        f"on a single stream they differ by {100 * by_place.mean():.0f} points on average, and by "
        f"{100 * distance.max():.0f} at most ({NAMES[str(worst['data'])]}, {plain(worst['target'])})"
    )


def models_that_lost(cells: pd.DataFrame) -> str:
    """The number of models and streams on which poise is less accurate than no adaptation, in words."""
    keys = ["data", "backbone", "target", "tier", "seed"]
    online = cells[cells["protocol"] == "online"]
    ours, theirs = (of(online, each).set_index(keys)["accuracy"] for each in (POISE, SOURCE))
    change = (ours - theirs).dropna()
    if change.empty:
        return ""
    return (
        f"On {int((change < 0).sum())} of the {len(change)} streams, each with one model, `poise` is less "
        f"accurate than no adaptation, at worst by {told(-change.min())}."
    )


def right_and_says(cells: pd.DataFrame, variant: Variant) -> tuple[str, str]:
    """The share of right answers and the mean confidence, in per cent, over places that poise has as well."""
    means = [
        [mean(at(cells, place), each, metric) for each in (variant, POISE) for metric in RIGHT_AND_SAYS]
        for place in networks(cells)
    ]
    known = [(right, says) for right, says, *ours in means if None not in (right, says, *ours)]
    right, says = (fmean(each) for each in zip(*known, strict=True)) if known else (float("nan"),) * 2
    return f"{100 * right:.0f} %", f"{100 * says:.0f} %"


def factors_of_ece(cells: pd.DataFrame) -> str:
    """The ratio of the best raw rival's ECE to that of poise, or the least and the largest ratio."""
    ratios = [f"{ratio:.1f}" for place in networks(cells) if (ratio := _ratio(cells, place)) is not None]
    ends = dict.fromkeys([min(ratios, key=float), max(ratios, key=float)]) if ratios else ["-"]
    return " to ".join(ends)


def _ratio(cells: pd.DataFrame, place: Place) -> float | None:
    rows = at(cells, place)
    _, rival, poise = columns(rows)
    ours, theirs = mean(rows, poise, "ece"), rival and mean(rows, rival, "ece")
    return theirs / ours if ours and theirs else None


def lower(cells: pd.DataFrame) -> str:
    """The methods, with any temperature, that have a lower ECE than poise at three decimals."""
    found, rehearsed_at = [], []
    for place in networks(cells):
        parts = []
        for way in WAYS:
            eces = _whole_eces(at(cells, place), way)
            rehearsed_at += [str(place)] if way == POISE.tempering and eces.keys() - {SOURCE.name} else []
            names = [label for label, (theirs, ours) in eces.items() if round(theirs, 3) < round(ours, 3)]
            if names:
                ends = [told(find(eces[label][0] for label in names)) for find in (min, max)]
                values = " to ".join(dict.fromkeys(ends))
                parts.append(f"{listed(LABELS[label] for label in names)}, {WAYS[way]} ({values})")
        if parts:
            ours = told(mean(at(cells, place), POISE, "ece"))
            found.append(f"on {place} (`poise` {ours}) {'; '.join(parts)}")
    lower_ones = f"A lower ECE than `poise` have {'; '.join(found)}."
    some = lower_ones if found else "No ECE is below that of `poise`."
    where = "on all of these" if len(rehearsed_at) == len(networks(cells)) else f"on {listed(rehearsed_at)}"
    return f"{some} Other methods were {f'rehearsed as well {where}' if rehearsed_at else 'not rehearsed'}."


def _whole_eces(rows: pd.DataFrame, way: str) -> dict[str, tuple[float, float]]:
    """The ECE of each method with a temperature, and that of poise, where a method was run on all shifts."""
    found = {}
    for other in (Variant(label, way) for label in LABELS if label != POISE.name):
        both = common(rows, other, POISE)
        theirs, ours = mean(both, other, "ece"), mean(both, POISE, "ece")
        if theirs is not None and ours is not None and both["shift"].nunique() == rows["shift"].nunique():
            found[other.name] = (theirs, ours)
    return found


def against_dec(cells: pd.DataFrame) -> str:
    """The ECE of DEC in the paper's form over that of poise: the ratio, or the least and the largest."""
    ratios = []
    for place in networks(cells):
        both = common(at(cells, place), DEC, POISE)
        theirs, ours = mean(both, DEC, "ece"), mean(both, POISE, "ece")
        ratios += [f"{theirs / ours:.1f}"] if theirs and ours else []
    ends = dict.fromkeys([min(ratios, key=float), max(ratios, key=float)]) if ratios else ["-"]
    return " to ".join(ends)


def hardly_learn(cells: pd.DataFrame) -> str:
    """The rivals that are as accurate as norm on every stream of a data set, in words; empty without any."""
    found = []
    for place in networks(cells):
        rows = at(cells, place)
        base = of(rows, NORM).set_index(["shift", "seed"])["accuracy"]
        for label in MINIMISERS:
            change = (of(rows, Variant(label, "none")).set_index(["shift", "seed"])["accuracy"] - base).abs()
            if len(change.dropna()) and change.max() < HARDLY:
                found.append((LABELS[label], str(place)))
    if not found:
        return ""
    names, at_places = (listed(dict.fromkeys(each)) for each in zip(*found, strict=True))
    return (
        f"In streams this short {names} hardly learn at these rates: on {at_places} their accuracy is "
        f"that of norm within {told(HARDLY)} on every stream."
    )
