"""Every method raw and divided: counts over cases, each a method on a data set with a network."""

import pandas as pd

from benchmarks.results.measured import NETWORKS, POISE, WAYS, at, means, networks
from benchmarks.results.wording import table, told
from equipoise.research.report.table import listed


def cases(cells: pd.DataFrame) -> pd.DataFrame:
    """A row for each network and case; columns are a metric and a tempering."""
    found = {
        (str(place), place.backbone): means(at(cells, place), ["ece", "nll"]).unstack("tempering")
        for place in networks(cells)
    }
    return pd.concat(found, names=["place", "backbone", "method"])


def temperature_table(cells: pd.DataFrame) -> str:
    """Each tempering against raw answers: ECE before and after, and counts of ECE and NLL that fall."""
    frame, body = cases(cells), []
    for kind in (kind for kind in WAYS if kind != "none" and ("ece", kind) in frame.columns):
        both = frame.dropna(subset=[("ece", "none"), ("ece", kind)])
        change = f"{told(both['ece', 'none'].mean())} → {told(both['ece', kind].mean())}"
        falls = [
            f"{(both[metric, kind] < both[metric, 'none']).sum()} of {len(both)}" for metric in ("ece", "nll")
        ]
        body.append([WAYS[kind], change, *falls])
    return table(["divided by", "ECE: raw → divided", "ECE falls in", "NLL falls in"], body)


def mean_or_median(cells: pd.DataFrame) -> str:
    """Counts of cases in which the median of tau has a lower ECE than its mean, by network."""
    columns = [("ece", "mean"), ("ece", "median")]
    frame = cases(cells).reindex(columns=columns).dropna()
    if frame.empty:
        return "Mean and median of tau were not run on the same streams."
    lower = frame["ece", "median"] < frame["ece", "mean"]
    counts = {str(name): (each.sum(), len(each)) for name, each in lower.groupby("backbone")}
    parts = [
        f"{counts[name][0]} of {counts[name][1]} cases with {NETWORKS[name]}"
        for name in NETWORKS
        if name in counts
    ]
    return f"The median of tau has a lower ECE than its mean in {listed(parts)}."


def median_or_rehearsed(cells: pd.DataFrame) -> str:
    """Counts of cases with both in which the rehearsed temperature has a lower ECE than the median of tau."""
    columns = [("ece", "median"), ("ece", "rehearsed")]
    frame = cases(cells).reindex(columns=columns).dropna()
    if frame.empty:
        return ""
    both = frame["ece"]
    lower = both["rehearsed"] < both["median"]
    rehearsed, median = (told(both[name].mean()) for name in ("rehearsed", "median"))
    others = lower[lower.index.get_level_values("method") != POISE.name]
    return (
        "Where both were run, the rehearsed temperature has a lower ECE than the median of tau in "
        f"{lower.sum()} of {len(lower)} cases ({rehearsed} against {median} on "
        f"average), without `poise` in {others.sum()} of {len(others)}."
    )
