"""Write docs/guard.md from its template and the rows that streams.py wrote.

python benchmarks/guard/page.py > docs/guard.md
"""

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
FALL = 0.05
"""The fall below no adaptation by which the guard should have acted."""


def share(value: float) -> str:
    """Three digits without the leading zero."""
    return f"{value:.3f}".replace("0.", ".", 1)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def without_collapse(rows: pd.DataFrame) -> str:
    """The streams with the recipe's options."""
    head = ["target", "method", "order", "images", "no adaptation", "alone", "guarded", "actions"]
    head += ["weights", "largest step", "statistics", "evidence of collapse"]
    lines = [
        [
            *(row.target, row.method, row.order, str(row.images)),
            *(share(value) for value in (row.source, row.adapted, row.guarded)),
            str(row.actions),
            *(share(value) for value in (row.largest_weights, row.largest_step, row.largest_statistics)),
            f"{max(row.largest_collapse, 0):.0%}",
        ]
        for row in rows.itertuples()
    ]
    return table(head, lines)


def broken(rows: pd.DataFrame) -> str:
    """Tent with rates that break it."""
    head = ["target", "rate", "no adaptation", "alone", "guarded", "first action after batch", "trigger"]
    head += ["below no adaptation by then"]
    lines = [
        [
            *(row.target, f"{row.rate:g}"),
            *(share(value) for value in (row.source, row.adapted, row.guarded)),
            *((f"{row.batch:.0f}", row.trigger, share(row.drop)) if row.acted else ("none", "", "")),
        ]
        for row in rows.itertuples()
    ]
    return table(head, lines)


def main() -> None:
    """Print the page."""
    rows = pd.read_csv(HERE / "digits.csv").sort_values(["target", "method", "order", "rate"])
    usual, fast = rows[rows.rate == 0], rows[rows.rate > 0]
    collapsed = fast[fast.adapted < fast.source - FALL]
    in_time = collapsed[collapsed.acted & (collapsed["drop"] < FALL)]
    text = (HERE / "page.md").read_text()
    for name, value in {
        "usual": without_collapse(usual),
        "fast": broken(fast),
        "streams": str(len(usual)),
        "acted": str(int(usual.acted.sum())),
        "collapsed": str(len(collapsed)),
        "in_time": str(len(in_time)),
        "targets": ", ".join(sorted(rows.target.unique())),
        "worst_step": share(usual.largest_step.max()),
        "worst_weights": share(usual.largest_weights.max()),
        "worst_statistics": share(usual.largest_statistics.max()),
    }.items():
        text = text.replace("{" + name + "}", value)
    print(text, end="")


if __name__ == "__main__":
    main()
