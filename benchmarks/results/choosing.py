"""Writes docs/choosing-poise.md and its full tables from search.csv and halves.csv beside this file.

python -m benchmarks.results.choosing
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from benchmarks.pages import fill, table, told
from benchmarks.results.measured import Place

HERE = Path(__file__).parent
HALVES = ("chosen on", "the other half")
SCORES = ("accuracy", "ece", "nll")
NONE, FOLLOWING = "none: the source model", "statistics: following .1"
WAYS = (
    NONE,
    "statistics: batch",
    FOLLOWING,
    "following .1, entropy weighted by 1/tau, Adam 1e-3 on norms",
    "following .1, paper's loss without avg(tau)², Adam 1e-3 on norms",
    "following .1, released loss, SGD 1e-3 on all",
)
DIVISORS = ("raw", "mean", "median", "sample", "start")
"""The ways and the divisors that the page shows of all that were tried."""
TITLES = {
    "dig-sma": "Digits, SmallCNN",
    "pac-eff": "PACS, EfficientNet-B0",
    "pac-mob": "PACS, MobileNet",
    "tin-eff": "TinyImageNet-C, EfficientNet-B0",
    "tin-mob": "TinyImageNet-C, MobileNet",
}


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


def score_table(rows: pd.DataFrame, score: str, key: str) -> str:
    """One score for each way or divisor, a column for each group of streams."""
    wide = rows.pivot(index=key, columns="group", values=score).reindex(rows[key].drop_duplicates())
    body = [[str(name), *map(told, row)] for name, row in zip(wide.index, wide.to_numpy(), strict=True)]
    return table(["", *(TITLES[str(group)] for group in wide.columns)], body)


def _answer(search: pd.DataFrame, _: pd.DataFrame) -> dict[str, str]:
    by_median = search[search["rule"] == "median"]
    following = search[(search["variant"] == FOLLOWING) & search["rule"].isin(DIVISORS)]
    return {
        "accuracies": score_table(by_median[by_median["variant"].isin(WAYS)], "accuracy", "variant"),
        "eces": score_table(following, "ece", "rule"),
    }


def _everything(search: pd.DataFrame, halves: pd.DataFrame) -> dict[str, str]:
    variant, rule = search["variant"], search["rule"]
    ways = variant.str.contains("following") | variant.str.startswith(("none", "stat", "batch", "the same"))
    tables = {
        "ways": ways & (rule == "median"),
        "divisors": variant.isin([NONE, FOLLOWING]),
        "together": variant.str.startswith("head") | (variant == "poise"),
        "ranges": variant == "poise, range of t",
    }
    found = {name: search_table(search[rows]) for name, rows in tables.items()}
    return found | {"halves": halves_table(halves)}


PAGES: Mapping[str, Callable[[pd.DataFrame, pd.DataFrame], dict[str, str]]] = {
    "choosing-poise.md": _answer,
    "tables/choosing-poise.md": _everything,
}
"""What each page has in its regions."""


def parts(page: str) -> dict[str, str]:
    """The regions of a page."""
    search = pd.read_csv(HERE / "search.csv")
    halves = pd.read_csv(HERE / "halves.csv").fillna({"tier": 0}).astype({"tier": int})
    return PAGES[page](search, halves)


if __name__ == "__main__":
    for page in PAGES:
        fill(page, parts(page))
