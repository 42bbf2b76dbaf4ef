"""The causes of missed goals, each written only where the goal is missed."""

from collections.abc import Sequence

import pandas as pd
from bar import GOALS, Decision
from estimates import estimated
from measured import POISE, SOURCE, Measured, Place, at, mean
from wording import told

from equipoise.report.results import Variant


def causes(measured: Measured, made: Sequence[Decision]) -> str:
    """A line for each goal and data set that is missed; one without a known cause is named as such."""
    missed = [each for each in made if each.reached is False]
    lines = dict.fromkeys(_cause(measured, each) for each in missed)
    return "Why goals were missed:\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _cause(measured: Measured, missed: Decision) -> str:
    match missed.goal, missed.place.data:
        case "ece", "digits":
            found = _mnist(measured.cells)
        case "domain", "pacs" if missed.numbers.endswith("on photo"):
            found = _photo(measured.cells, missed)
        case (("ece" | "third" | "paper-ece"), _):
            found = _floor(measured.cells, missed.place)
        case _:
            found = ""
    return (
        f"*{missed.place}*: {found}"
        if found
        else f"*{missed.place}*, {GOALS[missed.goal]}: no cause is known."
    )


def _mnist(cells: pd.DataFrame) -> str:
    """The estimate on MNIST is too low; empty where it is not."""
    rows, guesses = at(cells, Place("digits", "smallcnn")), estimated(cells)
    there, guess = rows[rows["target"] == "mnist"], guesses[guesses["target"] == "mnist"]
    if not guess["error"].mean() < 0:
        return ""
    raw, ours = (mean(there, Variant(POISE.name, each), "ece") for each in ("none", POISE.tempering))
    return (
        f"on MNIST the rehearsal estimates {told(guess['value'].mean(), 2)} of the answers of `poise` to be "
        f"right, and {told(guess['accuracy'].mean(), 2)} are. Without labels they can hardly be told from "
        "those to rehearsed shifts of lower accuracy ([rehearsal.md](rehearsal.md#when-it-does-not-work) has "
        f"the numbers). The ECE there is {told(ours)}; that of the raw answers is {told(raw)}."
    )


def _photo(cells: pd.DataFrame, missed: Decision) -> str:
    rows = at(cells, missed.place)
    source, ours = (mean(rows[rows["target"] == "photo"], each, "accuracy") for each in (SOURCE, POISE))
    return (
        f"the source model is right on {told(source)} of the photos to begin with, `poise` on {told(ours)}, "
        "and `poise` is not sure enough of that to let the source model answer."
    )


def _floor(cells: pd.DataFrame, place: Place) -> str:
    """The part of the ECE that no single temperature removes, and the error of the estimate."""
    rows, guesses = at(cells, place), estimated(cells)
    ours, floor = (mean(rows, Variant(POISE.name, each), "ece") for each in (POISE.tempering, "oracle"))
    there = guesses[(guesses["data"] == place.data) & (guesses["backbone"] == place.backbone)]
    errors = there[there["tier"] == place.tier]["error"] if place.tier else there["error"]
    if floor is None or errors.empty:
        return ""
    return (
        f"the ECE of `poise` is {told(ours)}, and the best single temperature, found with labels, leaves "
        f"{told(floor)}. The estimated accuracy, which sets the temperature, is "
        f"{told(abs(errors.mean()))} too {'high' if errors.mean() > 0 else 'low'} on average."
    )
