"""The causes of missed goals, each written only where the goal is missed."""

from collections.abc import Sequence

import pandas as pd

from benchmarks.results.bar import Decision
from benchmarks.results.estimates import estimated
from benchmarks.results.measured import POISE, SOURCE, Measured, Place, at, mean
from benchmarks.results.robust_streams import STREAMS
from benchmarks.results.robustness import collapsed
from benchmarks.results.wording import told
from equipoise.calibration.temper import ENTER
from equipoise.research.report.results import Variant

BRIEFLY = {
    "ece": "ECE",
    "third": "a third of the best raw rival's ECE",
    "nll": "NLL",
    "nll-rehearsed": "NLL of rehearsed rivals",
    "accuracy": "accuracy",
    "domain": "accuracy of every domain",
    "paper-ece": "the paper's ECE",
    "paper-nll": "the paper's NLL",
    "collapse": "no collapse",
}
"""The goals of `bar.GOALS` in a few words."""


def causes(measured: Measured, made: Sequence[Decision]) -> str:
    """A line for each missed goal; one without a known cause is named as such."""
    missed = [each for each in made if each.reached is False]
    lines = [f"- *{each.place}*, {BRIEFLY[each.goal]}: {_cause(measured, each)}" for each in missed]
    return "Why goals were missed:\n\n" + "\n".join(lines) if lines else ""


def _cause(measured: Measured, missed: Decision) -> str:
    match missed.goal, missed.place.data:
        case "ece", "digits":
            found = _mnist(measured.cells)
        case (("ece" | "third" | "paper-ece"), _):
            found = _floor(measured.cells, missed)
        case (("nll" | "nll-rehearsed"), _):
            found = _statistics_cost(measured.cells, missed.place)
        case "domain", _:
            found = _domain(measured.cells, missed)
        case "collapse", _:
            found = _collapse(measured.robust, missed.place)
        case _:
            found = ""
    return found or "no cause is known."


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


def _domain(cells: pd.DataFrame, missed: Decision) -> str:
    rows = at(cells, missed.place)
    there = rows[rows["shift"] == missed.worst]
    source, ours = (mean(there, each, "accuracy") for each in (SOURCE, POISE))
    if source is None or ours is None:
        return ""
    return (
        f"the source model is right on {told(source)}, `poise` on {told(ours)}. The source model answers "
        f"only where it is estimated to be {told(ENTER, 2)} better, and the difference is smaller."
    )


def _statistics_cost(cells: pd.DataFrame, place: Place) -> str:
    """The accuracy lost by the batch's statistics; empty where they gain."""
    rows = at(cells, place)
    source, norm = (mean(rows, each, "accuracy") for each in (SOURCE, Variant("norm", "none")))
    t3a, ours = (mean(rows, Variant(name, "oracle"), "nll") for name in ("t3a", POISE.name))
    if source is None or norm is None or t3a is None or ours is None or norm >= source or t3a >= ours:
        return ""
    return (
        "statistics that follow the stream cost accuracy on this network (norm is right on "
        f"{told(norm)}, no adaptation on {told(source)}), and T3A leaves them alone. At the best "
        f"temperature, found with labels, the NLL of T3A is {told(t3a)}, that of the answers of `poise` "
        f"before the source model answers any {told(ours)}."
    )


def _floor(cells: pd.DataFrame, missed: Decision) -> str:
    """The part of the ECE that no single temperature removes, or the error of the estimate."""
    place, guesses = missed.place, estimated(cells)
    floor = mean(at(cells, place), Variant(POISE.name, "oracle"), "ece")
    there = guesses[(guesses["data"] == place.data) & (guesses["backbone"] == place.backbone)]
    errors = there[there["tier"] == place.tier]["error"] if place.tier else there["error"]
    if floor is None or missed.limit is None or errors.empty:
        return ""
    if floor > missed.limit:
        return (
            f"at most {told(missed.limit)} was wanted, and even the best single temperature, found with "
            f"labels, leaves {told(floor)}."
        )
    return (
        f"at most {told(missed.limit)} was wanted; the best single temperature, found with labels, leaves "
        f"{told(floor)}, and the estimate of accuracy behind ours is off by {told(errors.abs().mean())} on "
        "average."
    )


def _collapse(robust: pd.DataFrame, place: Place) -> str:
    """Kinds of collapse at a place, each with its number."""
    here = robust[(robust["data"] == place.data) & (robust["backbone"] == place.backbone)]
    lost = collapsed(here)
    changes = lost["stream"].map(lambda name: STREAMS[name].changes)
    by_source = ~changes & (lost["answered_by_source"] > 0.5)
    kinds = {
        "where the source model answers a sorted stream: as good as no adaptation, without the gain of "
        "adapting": by_source,
        "after abrupt changes: without learning, the statistics stay those of the last images, and the "
        "shuffled stream has all kinds of them": changes,
        "where the statistics follow one class after the other, and the source model does not "
        "answer": ~by_source & ~changes,
    }
    found = [f"{each.sum()} {words}" for words, each in kinds.items() if each.any()]
    return f"{'; '.join(found)}."
