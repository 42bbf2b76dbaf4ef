"""Writes the tables of docs/guard.md from the rows that streams.py wrote.

python -m benchmarks.guard.guard_page
"""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.pages import fill, table, told

HERE = Path(__file__).parent
Row = dict[str, Any]
DISTANCES = ("weights", "step", "statistics")


def rows_of(quick: bool) -> list[Row]:
    """The rows of streams with rates that break tent, or of those with the recipe's options."""
    frame = pd.read_csv(HERE / "digits.csv").sort_values(["target", "method", "order", "rate"])
    rows = frame[(frame["rate"] > 0) == quick].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def without_collapse(rows: list[Row]) -> str:
    """The streams with the recipe's options."""
    head = ["target", "method", "order", "images", "no adaptation", "alone", "guarded", "actions"]
    head += ["weights", "largest step", "statistics", "evidence of collapse"]
    body = [
        [
            *(str(row[name]) for name in ("target", "method", "order", "images")),
            *(told(row[name]) for name in ("source", "adapted", "guarded")),
            str(row["actions"]),
            *(told(row[f"largest_{name}"]) for name in DISTANCES),
            f"{max(row['largest_collapse'], 0):.0%}",
        ]
        for row in rows
    ]
    return table(head, body)


def by_classes(row: Row) -> list[str]:
    """The action that the test on classes alone would have led to."""
    if math.isnan(row["classes_batch"]):
        return ["not measured", ""]
    found = row["classes_batch"]
    return [f"{found:.0f}", told(row["classes_drop"])] if found else ["none", ""]


def broken(rows: list[Row]) -> str:
    """Tent with rates that break it."""
    head = ["target", "rate", "no adaptation", "alone", "guarded", "first action after batch", "trigger"]
    head += ["below no adaptation by then", "test on classes alone: batch", "by then"]
    body = []
    for row in rows:
        accuracies = [told(row[name]) for name in ("source", "adapted", "guarded")]
        acted = [f"{row['batch']:.0f}", row["trigger"], told(row["drop"])]
        action = acted if row["acted"] else ["none", "", ""]
        body.append([row["target"], f"{row['rate']:g}", *accuracies, *action, *by_classes(row)])
    return table(head, body)


def parts() -> dict[str, str]:
    """The regions of the page."""
    return {"usual": without_collapse(rows_of(quick=False)), "fast": broken(rows_of(quick=True))}


if __name__ == "__main__":
    fill("guard.md", parts())
