"""Write docs/guard.md from its template and the rows that streams.py wrote.

python -m benchmarks.guard.guard_page > docs/guard.md
"""

import math
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
Row = dict[str, Any]
DISTANCES = ("weights", "step", "statistics")
FALL = 0.05
"""The fall below no adaptation by which the guard should have acted."""


def share(value: float) -> str:
    """Three digits without the leading zero."""
    return f"{value:.3f}".replace("0.", ".", 1)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def without_collapse(rows: list[Row]) -> str:
    """The streams with the recipe's options."""
    head = ["target", "method", "order", "images", "no adaptation", "alone", "guarded", "actions"]
    head += ["weights", "largest step", "statistics", "evidence of collapse"]
    before = ("target", "method", "order", "images")
    shares = ("source", "adapted", "guarded")
    lines = [
        [
            *(str(row[name]) for name in before),
            *(share(row[name]) for name in shares),
            str(row["actions"]),
            *(share(row[f"largest_{name}"]) for name in DISTANCES),
            f"{max(row['largest_collapse'], 0):.0%}",
        ]
        for row in rows
    ]
    return table(head, lines)


def by_classes(row: Row) -> list[str]:
    """The action that the test on classes alone would have led to."""
    if math.isnan(row["classes_batch"]):
        return ["not measured", ""]
    return (
        [f"{row['classes_batch']:.0f}", share(row["classes_drop"])] if row["classes_batch"] else ["none", ""]
    )


def broken(rows: list[Row]) -> str:
    """Tent with rates that break it."""
    head = ["target", "rate", "no adaptation", "alone", "guarded", "first action after batch", "trigger"]
    head += ["below no adaptation by then", "test on classes alone: batch", "by then"]
    lines = []
    for row in rows:
        accuracies = [share(row[name]) for name in ("source", "adapted", "guarded")]
        action = (
            [f"{row['batch']:.0f}", row["trigger"], share(row["drop"])] if row["acted"] else ["none", "", ""]
        )
        lines.append([row["target"], f"{row['rate']:g}", *accuracies, *action, *by_classes(row)])
    return table(head, lines)


def main() -> None:
    """Print the page."""
    frame = pd.read_csv(HERE / "digits.csv").sort_values(["target", "method", "order", "rate"])
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    usual, fast = ([row for row in rows if (row["rate"] > 0) is quick] for quick in (False, True))
    collapsed = [row for row in fast if row["adapted"] < row["source"] - FALL]
    in_time = [row for row in collapsed if row["acted"] and row["drop"] < FALL]
    text = (HERE / "guard.template.md").read_text()
    for name, value in {
        "usual": without_collapse(usual),
        "fast": broken(fast),
        "streams": len(usual),
        "acted": sum(bool(row["acted"]) for row in usual),
        "collapsed": len(collapsed),
        "in_time": len(in_time),
        "targets": ", ".join(sorted({row["target"] for row in rows})),
        **{f"worst_{name}": share(max(row[f"largest_{name}"] for row in usual)) for name in DISTANCES},
    }.items():
        text = text.replace("{" + name + "}", str(value))
    print(text, end="")


if __name__ == "__main__":
    main()
