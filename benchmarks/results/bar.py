"""The goals that were set before the runs, each decided by the numbers beside it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd
from comparing import against_each, hardest
from measured import NAMES, POISE, SOURCE, Measured, Place, at, mean, networks, of, places, printed
from robustness import collapsed, paired
from wording import mark, plain, signed, table, told, told_paper, who

from equipoise.report.significance import Comparison

MOST_ECE = {"digits": 0.05, "pacs": 0.04, "tiny-imagenet-c": 0.055}
TEMPERED = ("none", "mean", "median")
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
    "collapse": "no collapse under any stream of [Robustness](#robustness)",
}


class Decision(NamedTuple):
    """A goal at a place: the numbers that decide it, and whether it is reached (None: does not apply)."""

    goal: str
    place: str
    numbers: str
    reached: bool | None

    def __str__(self) -> str:
        return self.numbers if self.reached is None else f"{self.numbers} {mark(self.reached)}"


def decisions(measured: Measured) -> list[Decision]:
    """Every goal at every place where its numbers are known."""
    made = [
        *(each for place in places(measured.cells) for each in _by_tier(measured.cells, place)),
        *(each for place in networks(measured.cells) for each in _by_network(measured.cells, place)),
    ]
    for (data, backbone), rows in measured.robust.groupby(["data", "backbone"], sort=False):
        lost, streams = collapsed(rows), paired(rows)
        numbers = f"{len(lost)} of {len(streams)} streams collapsed"
        made.append(Decision("collapse", str(Place(str(data), str(backbone))), numbers, lost.empty))
    return made


def _by_tier(cells: pd.DataFrame, place: Place) -> Iterator[Decision]:
    rows, name = at(cells, place), str(place)
    ece, nll = mean(rows, POISE, "ece"), mean(rows, POISE, "nll")
    if ece is None or nll is None:
        return
    limit = MOST_ECE[place.data]
    yield Decision("ece", name, f"{told(ece)}, goal {told(limit)}", ece <= limit)
    if raw := hardest(against_each(rows, "ece", POISE, ["none"])):
        ratio = raw.focal_mean / raw.rival_mean
        yield Decision(
            "third", name, f"{told(raw.focal_mean)} is {told(ratio, 2)} of {_rival(raw)}", ratio <= 1 / 3
        )
    papers = {metric: printed(place, "dec", metric) for metric in ("ece", "nll")}
    if (paper := papers["ece"]) is not None:
        yield Decision("paper-ece", name, f"{told(ece)}, paper {told_paper(paper)}", ece < paper.value)
    ours, theirs = mean(rows, SOURCE, "accuracy"), printed(place, "source", "accuracy")
    if (paper := papers["nll"]) is not None and ours is not None and theirs is not None:
        numbers = f"{told(nll)}, paper {told_paper(paper)}"
        yield Decision("paper-nll", name, numbers, nll < paper.value if theirs.reached_by(ours) else None)


def _by_network(cells: pd.DataFrame, place: Place) -> Iterator[Decision]:
    rows, name = at(cells, place), str(place)
    if best := hardest(against_each(rows, "nll", POISE, TEMPERED)):
        reached = best.focal_mean < best.rival_mean
        yield Decision("nll", name, f"{told(best.focal_mean)} against {_rival(best)}", reached)
    if best := hardest(against_each(rows, "nll", POISE, ["rehearsed"])):
        more = best.focal_mean / best.rival_mean - 1
        numbers = f"{told(best.focal_mean)} against {_rival(best)}, {100 * more:+.1f} %"
        yield Decision("nll-rehearsed", name, numbers, more <= NLL_MARGIN)
    if best := hardest(against_each(rows, "accuracy", POISE, ["none", "rehearsed"])):
        reached = best.focal_mean >= best.rival_mean - ACCURACY_MARGIN
        yield Decision("accuracy", name, f"{told(best.focal_mean)} against {_rival(best)}", reached)
    both = of(rows, POISE).merge(of(rows, SOURCE), on=["shift", "seed"], suffixes=("", "_source"))
    gained = (both["accuracy"] - both["accuracy_source"]).groupby(both["shift"]).mean()
    if len(gained):
        worst = str(gained.idxmin())
        numbers = f"{signed(gained[worst])} on {plain(worst)}"
        yield Decision("domain", name, numbers, bool(gained[worst] >= -DOMAIN_MARGIN))


def _rival(comparison: Comparison) -> str:
    return f"{told(comparison.rival_mean)} ({who(comparison.rival)})"


def goal_table(made: Sequence[Decision]) -> str:
    """Each goal, at how many places it is reached, and the places where it is missed."""
    body = []
    for goal, words in GOALS.items():
        decided = [each for each in made if each.goal == goal and each.reached is not None]
        missed = [f"{each.place}: {each.numbers}" for each in decided if not each.reached]
        count = f"{mark(not missed)} {len(decided) - len(missed)} of {len(decided)}"
        none = "applies nowhere" if any(each.goal == goal for each in made) else "not run"
        body.append([words, count if decided else none, "; ".join(missed)])
    return table(["goal", "reached", "missed at"], body)


def decision_table(made: Sequence[Decision], heads: dict[str, str]) -> str:
    """The numbers of some goals, a row for each place."""
    body = []
    for place in dict.fromkeys(each.place for each in made if each.goal in heads):
        there = {each.goal: str(each) for each in made if each.place == place}
        body.append([place, *(there.get(goal, "-") for goal in heads)])
    return table(["", *heads.values()], body)


def against_paper(cells: pd.DataFrame, made: Sequence[Decision]) -> str:
    """Poise against the numbers that the paper prints for DEC, with the models' accuracy before adapting."""
    body = []
    for place in places(cells):
        ours, theirs = mean(at(cells, place), SOURCE, "accuracy"), printed(place, "source", "accuracy")
        there = {each.goal: str(each) for each in made if each.place == str(place)}
        if ours is not None and theirs is not None and "paper-ece" in there:
            accuracies = f"{told(ours)}, paper {told_paper(theirs)}"
            less = "" if theirs.reached_by(ours) else " (less accurate)"
            body.append([str(place), accuracies + less, there["paper-ece"], there.get("paper-nll", "-")])
    return table(["", "no adaptation: accuracy", "ECE", "NLL"], body)


def count(made: Sequence[Decision]) -> str:
    """The number of reached goals among the decided ones."""
    decided = [each.reached for each in made if each.reached is not None]
    return f"{sum(decided)} of {len(decided)}"
