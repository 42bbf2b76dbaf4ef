"""The goals that were set before the runs, each decided by the numbers beside it."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from benchmarks.pages import mark, plain, signed, table, told
from benchmarks.results.measured import (
    LABELS,
    LEAVE_ONE_OUT,
    NAMES,
    NETWORKS_OF,
    POISE,
    RIVALS,
    SOURCE,
    WAYS,
    Measured,
    Place,
    against_each,
    at,
    common,
    hardest,
    mean,
    networks,
    of,
    places,
    printed,
)
from benchmarks.results.robustness import collapsed, is_complete, paired
from equipoise.research.report.paper import experiments
from equipoise.research.report.results import Variant
from equipoise.research.report.significance import Comparison

MOST_ECE = {"digits": 0.05, "pacs": 0.04, "tiny-imagenet-c": 0.055}
RAW_OR_TAU = ("none", "mean", "median")
NLL_MARGIN, ACCURACY_MARGIN, DOMAIN_MARGIN = 0.005, 0.005, 0.01
GOALS = {
    "ece": "ECE of `poise` at most "
    + ", ".join(f"{told(most)} on {NAMES[data]}" for data, most in MOST_ECE.items())
    + " (each tier)",
    "third": "ECE at most a third of the best raw rival's",
    "nll": "NLL below every rival's, raw or divided by the mean or median of tau",
    "nll-rehearsed": f"NLL at most {100 * NLL_MARGIN:g} % above every rehearsed rival's",
    "accuracy": f"accuracy at least the best rival's less {told(ACCURACY_MARGIN)}",
    "domain": f"no domain more than {told(DOMAIN_MARGIN)} less accurate than without adaptation",
    "paper-ece": "ECE below the paper's own for DEC",
    "paper-nll": "NLL below the paper's own for DEC, where our model without adaptation is as accurate",
    "collapse": "no collapse under any stream of [robustness](results-robustness.md)",
}


BY_TIER = ("ece", "third", "paper-ece", "paper-nll")
"""The goals that are set for each tier apart."""


class Decision(NamedTuple):
    """A goal at a place: the numbers that decide it, and whether it is reached (None: does not apply)."""

    goal: str
    place: Place
    numbers: str
    reached: bool | None

    def __str__(self) -> str:
        return self.numbers if self.reached is None else f"{self.numbers} {mark(self.reached)}"


def named(goal: str) -> list[Place]:
    """The places that a goal was set for."""
    found = []
    for data, backbones in NETWORKS_OF.items():
        if goal == "collapse" and data not in LEAVE_ONE_OUT:
            continue
        tiers = range(1, experiments()[data].tiers + 1) if goal in BY_TIER else ()
        found += [Place(data, backbone, tier) for backbone in backbones for tier in tiers or (None,)]
    return found


def decisions(measured: Measured) -> list[Decision]:
    """Every goal at every place where its numbers are known, of all domains of the data set."""
    cells = measured.cells
    made = [
        *(each for place in places(cells) if _is_whole(cells, place) for each in _by_tier(cells, place)),
        *(each for place in networks(cells) if _is_whole(cells, place) for each in _by_network(cells, place)),
    ]
    for (data, backbone), rows in measured.robust.groupby(["data", "backbone"], sort=False):
        lost, streams = collapsed(rows), paired(rows)
        if is_complete(streams) or len(lost):
            numbers = f"{len(lost)} of {len(streams)} streams collapsed"
            made.append(Decision("collapse", Place(str(data), str(backbone)), numbers, lost.empty))
    return made


def _is_whole(cells: pd.DataFrame, place: Place) -> bool:
    return at(cells, place)["target"].nunique() == experiments()[place.data].domains


def _by_tier(cells: pd.DataFrame, place: Place) -> Iterator[Decision]:
    rows = at(cells, place)
    ece, nll = mean(rows, POISE, "ece"), mean(rows, POISE, "nll")
    if ece is None or nll is None:
        return
    limit = MOST_ECE[place.data]
    floor = told(mean(rows, Variant(POISE.name, "oracle"), "ece"))
    yield Decision("ece", place, f"{told(ece)} (floor {floor}), goal {told(limit)}", ece <= limit)
    yield from _against_all(rows, Decision("third", place, "", None), "ece", ("none",), _third)
    papers = {metric: printed(place, "dec", metric) for metric in ("ece", "nll")}
    if (paper := papers["ece"]) is not None:
        numbers = f"{told(ece)}, paper {paper}"
        yield Decision("paper-ece", place, numbers, ece < paper.value)
    ours, theirs = mean(rows, SOURCE, "accuracy"), printed(place, "source", "accuracy")
    if (paper := papers["nll"]) is not None and ours is not None and theirs is not None:
        numbers = f"{told(nll)}, paper {paper}"
        yield Decision("paper-nll", place, numbers, nll < paper.value if theirs.reached_by(ours) else None)


def _by_network(cells: pd.DataFrame, place: Place) -> Iterator[Decision]:
    rows = at(cells, place)
    for goal, metric, temperings, decide in (
        ("nll", "nll", RAW_OR_TAU, _below),
        ("nll-rehearsed", "nll", ("rehearsed",), _hardly_above),
        ("accuracy", "accuracy", ("none",), _as_accurate),  # a temperature does not change it
    ):
        yield from _against_all(rows, Decision(goal, place, "", None), metric, temperings, decide)
    both = common(rows, POISE, SOURCE)
    ours, theirs = (of(both, each).groupby("shift")["accuracy"].mean() for each in (POISE, SOURCE))
    if len(gained := ours - theirs):
        worst = str(gained.idxmin())
        numbers = f"{signed(gained[worst])} on {plain(worst)}"
        yield Decision("domain", place, numbers, bool(gained[worst] >= -DOMAIN_MARGIN))


def _against_all(
    rows: pd.DataFrame,
    blank: Decision,
    metric: str,
    temperings: Sequence[str],
    decide: Callable[[Comparison], tuple[str, bool]],
) -> Iterator[Decision]:
    """A goal that names every rival: one rival is enough to miss it, all must have been run to reach it."""
    made = against_each(rows, metric, POISE, temperings)
    if (worst := hardest(made)) is None:
        return
    numbers, reached = decide(worst)
    if not reached or len(made) == len(RIVALS) * len(temperings):
        yield blank._replace(numbers=numbers, reached=reached)


def _third(best: Comparison) -> tuple[str, bool]:
    ratio = best.focal_mean / best.rival_mean
    return f"{told(best.focal_mean)} is {told(ratio, 2)} of {rival_of(best)}", ratio <= 1 / 3


def _below(best: Comparison) -> tuple[str, bool]:
    return f"{told(best.focal_mean)} against {rival_of(best)}", best.focal_mean < best.rival_mean


def _hardly_above(best: Comparison) -> tuple[str, bool]:
    more = best.focal_mean / best.rival_mean - 1
    return f"{told(best.focal_mean)} against {rival_of(best)}, {100 * more:+.1f} %", more <= NLL_MARGIN


def _as_accurate(best: Comparison) -> tuple[str, bool]:
    reached = best.focal_mean >= best.rival_mean - ACCURACY_MARGIN
    return f"{told(best.focal_mean)} against {rival_of(best)}", reached


def rival_of(comparison: Comparison) -> str:
    """The rival of a comparison with its mean and tempering: ".250 (ETA, raw)"."""
    name, tempering = comparison.rival
    return f"{told(comparison.rival_mean)} ({LABELS[name]}, {WAYS[tempering]})"


def goal_table(made: Sequence[Decision]) -> str:
    """Each goal, at how many of its places it is reached, and the places where it is missed."""
    body = []
    for goal, words in GOALS.items():
        there = [each for each in made if each.goal == goal]
        decided = [each for each in there if each.reached is not None]
        missed = [f"{each.place}: {each.numbers}" for each in decided if not each.reached]
        left = len(named(goal)) - len(there)
        counts = [f"{len(decided) - len(missed)} of {len(decided)}"] if decided else []
        counts += [f"{len(there) - len(decided)} do not apply"] if len(there) > len(decided) else []
        counts += [f"{left} not run"] if left else []
        sign = f"{mark(not missed)} " if missed or (decided and not left) else ""
        body.append([words, sign + ", ".join(counts), "; ".join(missed)])
    return table(["goal", "reached", "missed at"], body)


def decision_table(made: Sequence[Decision], heads: dict[str, str]) -> str:
    """The numbers of some goals, a row for each place."""
    body = []
    for place in dict.fromkeys(each.place for each in made if each.goal in heads):
        there = {each.goal: str(each) for each in made if each.place == place}
        body.append([str(place), *(there.get(goal, "-") for goal in heads)])
    return table(["", *heads.values()], body)


def against_paper(cells: pd.DataFrame, made: Sequence[Decision]) -> str:
    """Poise against the numbers that the paper prints for DEC, with the models' accuracy before adapting."""
    body = []
    for place in places(cells):
        ours, theirs = mean(at(cells, place), SOURCE, "accuracy"), printed(place, "source", "accuracy")
        there = {each.goal: str(each) for each in made if each.place == place}
        if ours is not None and theirs is not None and "paper-ece" in there:
            accuracies = f"{told(ours)}, paper {theirs}"
            less = "" if theirs.reached_by(ours) else " (less accurate)"
            body.append([str(place), accuracies + less, there["paper-ece"], there.get("paper-nll", "-")])
    return table(["", "no adaptation: accuracy", "ECE", "NLL"], body)
