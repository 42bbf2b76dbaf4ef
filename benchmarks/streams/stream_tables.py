"""The tables of docs/streams.md's comparison: methods by settings, one table for a metric and a tempering."""

from collections.abc import Mapping, Sequence

import pandas as pd

from benchmarks.results.wording import folded, table, told
from benchmarks.streams.stream_cells import RAW, REHEARSED, marked, matrix, names

TITLES = {
    ("accuracy", RAW): "Accuracy, higher is better",
    ("accuracy", REHEARSED): "Accuracy of rehearsed answers, where the source model may answer as well",
    ("ece", RAW): "ECE of raw answers, lower is better",
    ("ece", REHEARSED): "ECE of rehearsed answers",
    ("nll", RAW): "NLL of raw answers, lower is better",
    ("nll", REHEARSED): "NLL of rehearsed answers",
    ("off", REHEARSED): "Error of the accuracy that is estimated without labels",
}


def comparison_tables(cells: pd.DataFrame) -> str:
    """The table of accuracy, and folded tables of the other metrics."""
    first, *others = TITLES
    parts = [f"**{TITLES[first]}**", metric_table(cells, *first)]
    parts += [folded(TITLES[each], metric_table(cells, *each)) for each in others]
    return "\n\n".join(parts)


def metric_table(cells: pd.DataFrame, metric: str, tempering: str) -> str:
    """A row for each method, a column for each setting; the best in bold, those alike in italics."""
    values = matrix(cells, metric, tempering)
    columns = [
        written(by_name, marked(cells, setting, metric, tempering)) for setting, by_name in values.items()
    ]
    shown = [name for name in names(cells) if any(name in column for column in columns)]
    body = [[f"`{name}`", *(column.get(name, "-") for column in columns)] for name in shown]
    return table(["", *(f"{place.short}: {stream}" for place, stream in values)], body)


def written(by_name: Mapping[str, float], best: Sequence[str]) -> dict[str, str]:
    """The numbers of a setting with their marks; all that are written as the best is are the best."""
    found = {}
    for name, value in by_name.items():
        text = told(value)
        if best and text == told(by_name[best[0]]):
            text = f"**{text}**"
        elif name in best:
            text = f"*{text}*"
        found[name] = text
    return found
