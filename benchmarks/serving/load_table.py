"""Writes the table of docs/serving.md from the measurements of load.py.

python -m benchmarks.serving.load_table
"""

from pathlib import Path

import pandas as pd

from benchmarks.pages import fill, table

FILE = Path(__file__).with_name("load.csv")
LEAST_THROUGHPUT, MOST_P99 = 0.6, 3.0
"""The goal: the least share of the bare model's throughput, and the most times its p99."""


def parts() -> dict[str, str]:
    """The region of the page: a row for each case that both services were measured in."""
    rows, case = pd.read_csv(FILE), ["clients", "rows", "streams"]
    bare, served = (rows[rows["service"] == kind] for kind in ("bare", "poise"))
    body = []
    for row in bare.merge(served, on=case, suffixes=("_bare", "")).to_dict("records"):
        throughput, p99 = (row[name] / row[f"{name}_bare"] for name in ("requests_per_s", "p99_ms"))
        body.append(
            [
                *(str(row[name]) for name in case),
                *(f"{row[name]:.1f}" for name in ("requests_per_s_bare", "requests_per_s")),
                f"{throughput:.0%}",
                *(f"{row[name]:,.0f} ms" for name in ("p99_ms_bare", "p99_ms")),
                f"{p99:.1f}",
                f"{row['learned']:.0%}",
                "met" if throughput >= LEAST_THROUGHPUT and p99 <= MOST_P99 else "missed",
            ]
        )
    head = [*case, "bare, requests/s", "served", "ratio", "bare, p99", "served", "ratio", "learned", "goal"]
    return {"load": table(head, body, narrow=True)}


if __name__ == "__main__":
    fill("serving.md", parts())
