"""Writes docs/guard.md and its full tables from the rows that streams.py wrote.

python -m benchmarks.guard.guard_page
"""

import math
from collections.abc import Callable, Mapping
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


def by_rate(rows: list[Row]) -> str:
    """The means over the targets for each rate of tent, and on how many of them the guard acted."""
    frame = pd.DataFrame(rows)
    body = [
        [
            f"{rate:g}",
            *(told(found[name].mean()) for name in ("source", "adapted", "guarded")),
            f"{found['acted'].sum()} of {len(found)}",
        ]
        for rate, found in frame.groupby("rate")
    ]
    return table(["rate", "no adaptation", "TENT alone", "TENT, guarded", "guard acted"], body)


def parts(page: str) -> dict[str, str]:
    """The regions of a page."""
    return PAGES[page]()


PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "guard.md": lambda: {"rates": by_rate(rows_of(quick=True))},
    "tables/guard.md": lambda: {
        "usual": without_collapse(rows_of(quick=False)),
        "fast": broken(rows_of(quick=True)),
    },
}
"""What each page has in its regions."""


if __name__ == "__main__":
    for page in PAGES:
        fill(page, parts(page))
