"""The tables of docs/streams.md's comparison: methods by settings, one table for a metric and a tempering."""

import pandas as pd
from stream_cells import RAW, REHEARSED, Setting, marked, matrix
from wording import folded, table, told

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
        _column(values, setting, marked(cells, setting, metric, tempering))
        for setting in (Setting(*column) for column in values.columns)
    ]
    body = [[f"`{name}`", *(column[row] for column in columns)] for row, name in enumerate(values.index)]
    head = [f"{place.short}: {stream}" for place, stream in values.columns]
    return table(["", *head], body)


def _column(values: pd.DataFrame, setting: Setting, best: list[str]) -> list[str]:
    found = []
    for name, value in values[setting].items():
        text = told(float(value))
        if best and text == told(float(values.loc[best[0], setting])):
            text = f"**{text}**"
        elif name in best:
            text = f"*{text}*"
        found.append(text)
    return found
