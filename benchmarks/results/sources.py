"""The source models: the ways to train them that were tried, and their accuracy beside the paper's."""

from typing import NamedTuple

import pandas as pd
from measured import SOURCE, Place, at, mean, networks, printed
from wording import folded, mark, mean_and_spread, plain, signed, table, told, told_paper

LAST = 5
"""The epochs before the end that a held-out accuracy is averaged over: single epochs differ by chance."""
NEAR = 0.02
"""A model within so much of the paper's accuracy is called as good."""


class Outcome(NamedTuple):
    """A way to train: the targets (and seeds) of its models, and means over them.

    `steady` is the held-out accuracy over the last epochs, `last` after the last one, as is `target`.
    """

    models: str
    steady: float
    last: float
    target: float


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
        body.append([str(place), str(rows["seed"].nunique()), by_seed, told_paper(theirs), near])
    return table(["", "seeds", "ours", "the paper's", "difference"], body)


def training_tables(training: pd.DataFrame) -> str:
    """The ways that were tried for each data set and network, the best on held-out source images first."""
    parts = []
    for (data, backbone), rows in training.groupby(["data", "backbone"], sort=False):
        ways = [(str(way), _outcome(tried)) for way, tried in rows.groupby("way", sort=False)]
        ways.sort(key=lambda way: way[1].steady, reverse=True)
        body = [[way, made.models, *map(told, made[1:])] for way, made in ways]
        head = ["way", "models", f"held out, last {LAST} epochs", "held out, last epoch", "target"]
        parts.append(folded(str(Place(str(data), str(backbone))), table(head, body)))
    return "\n\n".join(parts)


def _outcome(tried: pd.DataFrame) -> Outcome:
    by_model = tried.sort_values("epoch").groupby(["target", "seed"])
    last = by_model.tail(1)
    steady = by_model.tail(LAST).groupby(["target", "seed"])["held_out"].mean()
    means = (steady.mean(), last["held_out"].mean(), last["target_accuracy"].mean())
    targets = ", ".join(plain(target) for target in sorted(last["target"].unique()))
    seeds = last["seed"].nunique()
    return Outcome(f"{targets}; {seeds} seeds" if seeds > 1 else targets, *map(float, means))


def training_verdict(training: pd.DataFrame) -> str:
    """The number of ways and models that were tried."""
    models = training.groupby(["data", "backbone", "target", "seed", "way"]).ngroups
    return f"{training['way'].nunique()} ways, {models} models"
