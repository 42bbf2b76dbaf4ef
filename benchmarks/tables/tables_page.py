"""Writes the table of docs/how-to/tables.md from the rows that measure_tables.py wrote.

python -m benchmarks.tables.tables_page
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmarks.pages import fill, percent, table, told
from benchmarks.tables.measure_tables import LABELS

HERE = Path(__file__).parent
PAGE = "how-to/tables.md"

DATA = {
    "nannyml loans": "NannyML's loans",
    "nannyml cards": "NannyML's credit cards, 3 classes",
    "car_loan": "the same loans, own networks",
    "elec": "Elec",
    "weather": "weather",
}
"""The data of the page, with their names."""

ENOUGH = 0.85
"""The coverage that 90 % sets of a chunk shall have."""

OTHERS = ("confidence", "scaled confidence", "ATC", "held-out accuracy")


def read() -> pd.DataFrame:
    """The rows of the chunks."""
    return pd.read_csv(HERE / "chunks.csv")


def error(rows: pd.DataFrame, column: str) -> float:
    """The mean distance of an estimate from the truth."""
    return float((rows[column] - rows["truth"]).abs().mean())


def held(rows: pd.DataFrame, low: str, high: str) -> float:
    """The share of chunks whose truth is in the interval."""
    return float(((rows[low] <= rows["truth"]) & (rows["truth"] <= rows[high])).mean())


def errors(rows: pd.DataFrame) -> str:
    """The error of each estimate on each kind of data."""
    head = ["data", "chunks", "true accuracy", "`eq.Estimator`", "CBPE", *OTHERS]
    body = []
    for data, name in DATA.items():
        own = rows[rows["data"] == data]
        ends = f"{told(own['truth'].min(), 2)} to {told(own['truth'].max(), 2)}"
        numbers = [told(error(own, column), 4) for column in ("equipoise", "CBPE", *OTHERS)]
        body.append([name, str(len(own)), ends, *numbers])
    return table(head, body)


def intervals(rows: pd.DataFrame) -> str:
    """How often the 90 % intervals hold, and how wide they are."""
    head = ["data", "`eq.Estimator` holds", "width", "CBPE holds", "width", "inside", "drift marked"]
    body = []
    for data, name in DATA.items():
        own = rows[rows["data"] == data]
        body.append(
            [
                name,
                percent(held(own, "low", "high")),
                told(float((own["high"] - own["low"]).mean())),
                percent(held(own, "CBPE low", "CBPE high")),
                told(float((own["CBPE high"] - own["CBPE low"]).mean())),
                *(percent(float(own[column].mean())) for column in ("inside", "drift")),
            ]
        )
    return table(head, body)


def of_sets(rows: pd.DataFrame) -> str:
    """How many of the 90 % sets have the label, and their size."""
    head = ["data", "`eq.Estimator`", "chunks with 85 % or more", "classes in a set", "split conformal"]
    head += ["chunks with 85 % or more"]
    body = []
    for data, name in DATA.items():
        own = rows[rows["data"] == data]
        ours, theirs = own["covered"], own["split conformal covered"]
        enough = [percent(float((each >= ENOUGH).mean())) for each in (ours, theirs)]
        size = told(float(own["set size"].mean()), 2)
        body.append([name, told(ours.mean(), 2), enough[0], size, told(theirs.mean(), 2), enough[1]])
    return table(head, body)


def late_labels(rows: pd.DataFrame) -> str:
    """The error of the estimate, and how often the intervals hold, with labels of each chunk."""
    head = ["data", "no labels", *(f"{labels} labels" for labels in LABELS)]
    head += [f"interval holds with {labels}" for labels in LABELS]
    body = []
    for data, name in DATA.items():
        own = rows[rows["data"] == data]
        off = [error(own, "equipoise"), *(own[f"{labels} labels off"].mean() for labels in LABELS)]
        held_by = [percent(float(own[f"{labels} labels held"].mean())) for labels in LABELS]
        body.append([name, *(told(each) for each in off), *held_by])
    return table(head, body)


def parts() -> Mapping[str, str]:
    """The regions of the page."""
    rows = read()
    return {
        "errors": errors(rows),
        "intervals": intervals(rows),
        "sets": of_sets(rows),
        "labels": late_labels(rows),
    }


if __name__ == "__main__":
    fill(PAGE, parts())
