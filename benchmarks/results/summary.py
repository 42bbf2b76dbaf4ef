"""The first lines of the page: one small table, and sentences that need no knowledge of it."""

from statistics import fmean

import pandas as pd
from measured import LABELS, POISE, SOURCE, Place, at, best_raw_rival, common, mean, networks
from wording import table, told

from equipoise.report.results import Variant
from equipoise.report.table import listed

DEC = Variant("dec", "mean")
"""DEC as the paper has it."""
RIGHT_AND_SAYS = ("accuracy", "confidence")


def columns(rows: pd.DataFrame) -> tuple[Variant, Variant | None, Variant]:
    """No adaptation, the raw rival with the least ECE, and poise."""
    rival = best_raw_rival(rows)
    return SOURCE, Variant(rival, "none") if rival else None, POISE


def summary_table(cells: pd.DataFrame) -> str:
    """Accuracy and ECE of no adaptation, the best raw rival and poise, for each data set and network."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        source, rival, poise = columns(rows)
        name = f"{LABELS[rival.name]}: " if rival else ""
        line = [_cell(rows, source), name + _cell(rows, rival), f"**{_cell(rows, poise)}**"]
        body.append([str(place), *line])
    return table(["right answers, ECE", "no adaptation", "best rival", "**`poise`**"], body)


def _cell(rows: pd.DataFrame, variant: Variant | None) -> str:
    if variant is None or (accuracy := mean(rows, variant, "accuracy")) is None:
        return "not complete"
    return f"{100 * accuracy:.0f} %, {told(mean(rows, variant, 'ece'))}"


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


def lower_rehearsed(cells: pd.DataFrame) -> str:
    """The methods that have a lower ECE than poise, at three decimals, once they are rehearsed as well."""
    found, compared = [], 0
    others = [label for label in LABELS if label not in (SOURCE.name, POISE.name)]
    for place in networks(cells):
        lower = []
        for other in (Variant(label, POISE.tempering) for label in others):
            both = common(at(cells, place), other, POISE)
            theirs, ours = mean(both, other, "ece"), mean(both, POISE, "ece")
            if theirs is not None and ours is not None:
                compared += 1
                lower += [f"{LABELS[other.name]} {told(theirs)}"] if round(theirs, 3) < round(ours, 3) else []
        if lower:
            ours = mean(at(cells, place), POISE, "ece")
            found.append(
                f"on {place}, these have a lower ECE than `poise` with {told(ours)}: {listed(lower)}"
            )
    if not compared:
        return "No other method was rehearsed."
    return f"Rehearsed as well, {'; '.join(found) or 'no method has a lower ECE than `poise`'}."


def against_dec(cells: pd.DataFrame) -> str:
    """The ECE of DEC in the paper's form over that of poise, for each place that has both, in words."""
    told_ratios = []
    for place in networks(cells):
        both = common(at(cells, place), DEC, POISE)
        theirs, ours = mean(both, DEC, "ece"), mean(both, POISE, "ece")
        if theirs and ours:
            told_ratios.append(f"{theirs / ours:.1f} times that of `poise` on {place}")
    return listed(told_ratios) if told_ratios else "not run"
