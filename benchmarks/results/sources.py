"""The source models: the ways to train them that were tried, and their accuracy beside the paper's."""

import pandas as pd
from measured import SOURCE, Place, at, mean, networks, printed
from wording import folded, mark, mean_and_spread, plain, signed, table, told

LAST = 5
"""The epochs before the end that a held-out accuracy is averaged over: single epochs differ by chance."""
NEAR = 0.02
"""A model within so much of the paper's accuracy is called as good."""


def accuracy_table(cells: pd.DataFrame) -> str:
    """Our models' accuracy on the targets, without adaptation, beside the paper's."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        tiers = sorted(int(tier) for tier in rows["tier"].unique() if tier)
        ours, theirs = mean(rows, SOURCE, "accuracy"), printed(place, "source", "accuracy", tiers)
        if ours is None or theirs is None:
            continue
        by_seed = mean_and_spread(rows, SOURCE, "accuracy")
        near = f"{signed(ours - theirs.value)} {mark(ours >= theirs.value - NEAR)}"
        body.append([str(place), str(rows["seed"].nunique()), by_seed, told(theirs.value), near])
    return table(["", "seeds", "ours", "the paper's", "difference"], body)


def training_tables(training: pd.DataFrame) -> str:
    """The ways that were tried for each data set and network, the best on held-out source images first."""
    parts = []
    for (data, backbone), rows in training.groupby(["data", "backbone"], sort=False):
        ways = pd.DataFrame(
            [{"way": way, **_outcome(tried)} for way, tried in rows.groupby("way", sort=False)]
        ).sort_values("steady", ascending=False)
        body = [
            [str(way.way), str(way.models), *(told(value) for value in (way.steady, way.last, way.target))]
            for way in ways.itertuples()
        ]
        targets = ", ".join(sorted(plain(each) for each in rows["target"].unique()))
        head = ["way", "models", f"held out, last {LAST} epochs", "held out, last epoch", "target"]
        about = f"{Place(str(data), str(backbone))}; targets: {targets}"
        parts.append(folded(about, table(head, body)))
    return "\n\n".join(parts)


def _outcome(tried: pd.DataFrame) -> dict[str, float]:
    """Means over the models of one way."""
    by_model = tried.sort_values("epoch").groupby(["target", "seed"])
    last = by_model.tail(1)
    steady = by_model.tail(LAST).groupby(["target", "seed"])["held_out"].mean()
    return {
        "models": len(last),
        "steady": float(steady.mean()),
        "last": float(last["held_out"].mean()),
        "target": float(last["target_accuracy"].mean()),
    }


def training_verdict(training: pd.DataFrame) -> str:
    """The number of ways and models that were tried."""
    models = training.groupby(["data", "backbone", "target", "seed", "way"]).ngroups
    return f"{training['way'].nunique()} ways, {models} models"
