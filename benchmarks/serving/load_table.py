"""The table of docs/serving.md from the measurements of load.py, as Markdown.

python -m benchmarks.serving.load_table benchmarks/serving/load.csv
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

LEAST_THROUGHPUT, MOST_P99 = 0.6, 3.0
"""The goal: the least share of the bare model's throughput, and the most times its p99."""

COLUMNS = (
    "clients",
    "rows",
    "streams",
    "bare, requests/s",
    "served",
    "ratio",
    "bare, p99",
    "served",
    "ratio",
    "learned",
    "goal",
)


def table(file: Path) -> Iterator[str]:
    """The lines of the table, one for each case that both services were measured in."""
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    bare, served = ({_case(row): row for row in rows if row["service"] == kind} for kind in ("bare", "poise"))
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for case, of_bare in bare.items():
        if case in served:
            yield f"| {' | '.join((*case, *_compared(of_bare, served[case])))} |"


def _case(row: dict[str, str]) -> tuple[str, str, str]:
    return row["clients"], row["rows"], row["streams"]


def _compared(bare: dict[str, str], served: dict[str, str]) -> Iterator[str]:
    rates, tails = ([float(each[name]) for each in (bare, served)] for name in ("requests_per_s", "p99_ms"))
    throughput, p99 = rates[1] / rates[0], tails[1] / tails[0]
    yield from (f"{rate:.1f}" for rate in rates)
    yield f"{throughput:.0%}"
    yield from (f"{tail:,.0f} ms" for tail in tails)
    yield f"{p99:.1f}"
    yield f"{float(served['learned']):.0%}"
    yield "met" if throughput >= LEAST_THROUGHPUT and p99 <= MOST_P99 else "missed"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="written by load.py")
    print("\n".join(table(parser.parse_args().file)))


if __name__ == "__main__":
    main()
