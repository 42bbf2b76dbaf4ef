"""The source models: the ways to train them that were tried, and their accuracy beside the paper's."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from benchmarks.results.measured import SOURCE, Place, at, mean, networks, printed
from benchmarks.results.wording import folded, mark, mean_and_spread, plain, signed, table, told, told_paper
from equipoise.research.report.paper import experiments
from equipoise.research.report.table import listed

CHOSEN = "recipe"
"""The way to train that the runs of the page have."""
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
        ours, theirs = mean(rows, SOURCE, "accuracy"), printed(place, "source", "accuracy", _tiers(rows))
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
        body = [
            [f"**{way}** (chosen)" if way == CHOSEN else way, made.models, *map(told, made[1:])]
            for way, made in ways
        ]
        head = ["way", "models", f"held out, last {LAST} epochs", "held out, last epoch", "target"]
        parts.append(folded(str(Place(str(data), str(backbone))), table(head, body)))
    return "\n\n".join(parts)


def _outcome(tried: pd.DataFrame) -> Outcome:
    last = tried.sort_values("epoch").groupby(["target", "seed"]).tail(1)
    means = (_steady(tried).mean(), last["held_out"].mean(), last["target_accuracy"].mean())
    targets = ", ".join(plain(target) for target in sorted(last["target"].unique()))
    seeds = last["seed"].nunique()
    return Outcome(f"{targets}; {seeds} seeds" if seeds > 1 else targets, *map(float, means))


def _steady(tried: pd.DataFrame) -> pd.Series:
    """The held-out accuracy of each model of a way, over the last epochs."""
    last = tried.sort_values("epoch").groupby(["target", "seed"]).tail(LAST)
    return last.groupby(["target", "seed"])["held_out"].mean()


def training_count(training: pd.DataFrame) -> str:
    """The number of ways and models that were tried."""
    models = training.groupby(["data", "backbone", "target", "seed", "way"]).ngroups
    return f"{training['way'].nunique()} ways to train were tried, with {models} models in all"


def training_verdicts(training: pd.DataFrame) -> str:
    """For each data set and network, the way that was chosen and those that came near the paper."""
    lines = []
    for (data, backbone), rows in training.groupby(["data", "backbone"], sort=False):
        place = Place(str(data), str(backbone))
        ways = {str(way): tried for way, tried in rows.groupby("way", sort=False)}
        lines.append(f"- {place}: {_choice(ways)} {_near(place, ways)}")
    return "\n".join(lines)


def _choice(ways: Mapping[str, pd.DataFrame]) -> str:
    """The reason why the recipe's way was chosen, or a lead of another that it does not follow."""
    steady = {way: _steady(tried) for way, tried in ways.items()}
    best = max(steady, key=lambda way: float(steady[way].mean()))
    if CHOSEN not in steady:
        return "the recipe's way is not among those that were tried."
    if best == CHOSEN:
        second = max((float(each.mean()) for way, each in steady.items() if way != CHOSEN), default=None)
        if second is None:
            return "no way but the recipe's was tried."
        ahead, models = told(float(steady[CHOSEN].mean()) - second), len(steady[CHOSEN])
        others = f"the best of {len(ways) - 1} other ways by {ahead} (models: {models})"
        return f"the recipe leads {others}, and stayed."
    lead = steady[best] - steady[CHOSEN]
    size = (
        f"{told(float(lead.mean()))}, with a standard deviation over the models of {told(float(lead.std()))}"
    )
    if lead.std() > lead.mean():
        return f"*{best}* leads the recipe by {size}: within noise, so the recipe stayed."
    return f"*{best}* leads the recipe by {size}."


def _near(place: Place, ways: Mapping[str, pd.DataFrame]) -> str:
    """The ways whose models come near the paper's accuracy on the targets, if all targets were tried."""
    paper, targets = printed(place, "source", "accuracy"), experiments()[place.data].domains
    made = {way: _outcome(tried) for way, tried in ways.items() if tried["target"].nunique() == targets}
    if paper is None or not made:
        return "The paper prints a mean over all targets, and not all were tried."
    near = [
        f"*{way}* ({told(each.target)}; held out {told(each.steady)})"
        for way, each in made.items()
        if each.target >= paper.value - NEAR
    ]
    some = listed(near) if near else "none"
    return f"Within {told(NEAR, 2)} of the paper's {told_paper(paper)} on the targets: {some}."


def near_paper(cells: pd.DataFrame) -> str:
    """The number of data sets and networks whose models are as accurate as the paper's, in words."""
    known = [
        ours >= theirs.value - NEAR
        for place in networks(cells)
        if (ours := mean(at(cells, place), SOURCE, "accuracy")) is not None
        and (theirs := printed(place, "source", "accuracy", _tiers(at(cells, place)))) is not None
    ]
    return f"{sum(known)} of {len(known)} come within {told(NEAR, 2)} of the paper's, or above it"


def _tiers(rows: pd.DataFrame) -> list[int]:
    return sorted(int(tier) for tier in rows["tier"].unique() if tier)
