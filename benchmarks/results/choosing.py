"""Writes the tables of docs/choosing-poise.md from search.csv and halves.csv beside this file.

python -m benchmarks.results.choosing
"""

from pathlib import Path

import pandas as pd

from benchmarks.pages import fill, table, told
from benchmarks.results.measured import Place

HERE = Path(__file__).parent
HALVES = ("chosen on", "the other half")
SCORES = ("accuracy", "ece", "nll")


def search_table(rows: pd.DataFrame) -> str:
    """Accuracy, ECE and NLL in a cell for each way and divisor, a column for each group of streams."""
    cells = rows.assign(
        score=[
            f"{accuracy:.3f} {ece:.3f} {nll:.2f}"
            for accuracy, ece, nll in rows[list(SCORES)].itertuples(index=False)
        ]
    )
    keys = cells[["variant", "rule"]].drop_duplicates()
    wide = cells.pivot(index=["variant", "rule"], columns="group", values="score").reindex(
        pd.MultiIndex.from_frame(keys)
    )
    body = [
        [*map(str, names), *row]
        for names, row in zip(wide.index.tolist(), wide.fillna("-").to_numpy().tolist(), strict=True)
    ]
    return table(["adaptation", "divided by", *map(str, wide.columns)], body)


def halves_table(rows: pd.DataFrame) -> str:
    """Poise on the shifts that it was chosen on, and on the others."""
    body = []
    for (data, backbone, tier), there in rows.groupby(["data", "backbone", "tier"], sort=False):
        by_half = there.set_index("half").loc[list(HALVES), list(SCORES)].to_numpy().ravel().tolist()
        body.append([str(Place(str(data), str(backbone), int(str(tier)))), *map(told, by_half)])
    heads = [
        f"{half}: accuracy" if score == "accuracy" else score.upper() for half in HALVES for score in SCORES
    ]
    return table(["", *heads], body)


def parts() -> dict[str, str]:
    """The regions of the page."""
    search = pd.read_csv(HERE / "search.csv")
    halves = pd.read_csv(HERE / "halves.csv").fillna({"tier": 0}).astype({"tier": int})
    variant, rule = search["variant"], search["rule"]
    ways = variant.str.contains("following") | variant.str.startswith(("none", "stat", "batch", "the same"))
    tables = {
        "ways": ways & (rule == "median"),
        "divisors": variant.isin(["none: the source model", "statistics: following .1"]),
        "together": variant.str.startswith("head") | (variant == "poise"),
        "ranges": variant == "poise, range of t",
    }
    found = {name: search_table(search[rows]) for name, rows in tables.items()}
    return found | {"halves": halves_table(halves)}


if __name__ == "__main__":
    fill("choosing-poise.md", parts())
