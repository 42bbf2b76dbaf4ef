"""Every target domain: no adaptation, the best raw rival and poise, beside the floor of the ECE."""

import pandas as pd

from benchmarks.results.measured import LABELS, Place, at, mean, networks
from benchmarks.results.summary import columns
from benchmarks.results.wording import folded, mean_and_spread, plain, table, told
from equipoise.research.report.results import Variant

MOST_UNFOLDED = 4
"""The most targets of a table that is not folded."""


def domain_tables(cells: pd.DataFrame) -> str:
    """A table for each data set and network; long ones are folded."""
    parts = []
    for place in networks(cells):
        content, targets = _domains(cells, place), at(cells, place)["target"].nunique()
        parts.append(folded(str(place), content) if targets > MOST_UNFOLDED else f"**{place}**\n\n{content}")
    return "\n\n".join(parts)


def _domains(cells: pd.DataFrame, place: Place) -> str:
    rows = at(cells, place)
    body = []
    for target in sorted(rows["target"].unique()):
        there = rows[rows["target"] == target]
        for at_row, variant in enumerate(filter(None, columns(rows))):
            name = plain(target) if at_row == 0 else ""
            scores = [mean_and_spread(there, variant, metric) for metric in ("accuracy", "ece", "nll")]
            floor = told(mean(there, Variant(variant.name, "oracle"), "ece"))
            body.append([name, LABELS[variant.name], *scores, floor])
    return table(["target", "", "accuracy", "ECE", "NLL", "floor of ECE"], body)
