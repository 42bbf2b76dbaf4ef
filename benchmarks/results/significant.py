"""Paired tests over the shifts, with Holm's correction for their number."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from benchmarks.results.comparing import against_each, hardest
from benchmarks.results.measured import POISE, Place, at, networks
from benchmarks.results.summary import DEC
from benchmarks.results.wording import table, told, who
from equipoise.research.report.results import Variant
from equipoise.research.report.significance import Comparison

LEVEL = 0.05
FAMILIES = {
    "raw": "poise against the best raw rival",
    "tempered": "poise against the best rival divided by tau",
    "rehearsed": "poise against the best rehearsed rival",
    "dec": "DEC against the best raw rival",
}


class Tested(NamedTuple):
    """A comparison at a place, and its p after Holm's correction; None for fewer than three pairs."""

    place: Place
    comparison: Comparison
    p: float | None

    @property
    def wins(self) -> bool:
        """Whether the method is significantly better."""
        return self.p is not None and self.p < LEVEL and self.comparison.test.difference < 0


def tested(cells: pd.DataFrame, focal: Variant, temperings: Sequence[str]) -> list[Tested]:
    """A method against the best rival by ECE and NLL, for each data set and network: a family of tests."""
    made = [
        (place, best)
        for place in networks(cells)
        for metric in ("ece", "nll")
        if (best := hardest(against_each(at(cells, place), metric, focal, temperings))) is not None
    ]
    corrected = holm([comparison.test.t_p for _, comparison in made])
    return [Tested(*each, p) for each, p in zip(made, corrected, strict=True)]


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction: the i-th smallest of m p values times m − i + 1, never falling, at most 1."""
    order = sorted((p, at_row) for at_row, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, at_row) in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p))
        corrected[at_row] = least
    return corrected


def test_table(tests: Sequence[Tested]) -> str:
    """A row for each comparison."""
    body = []
    for place, comparison, p in tests:
        ours, theirs = told(comparison.focal_mean), told(comparison.rival_mean)
        against = f"{theirs} ({who(comparison.rival)})"
        pairs = str(comparison.test.pairs)
        body.append([str(place), comparison.metric.upper(), ours, against, pairs, _p(p)])
    return table(["", "by", "method", "best rival", "pairs", "p"], body)


def _p(p: float | None) -> str:
    if p is None:
        return "too few pairs"
    return "< .001" if p < 0.001 else told(p)


def test_verdict(tests: Sequence[Tested]) -> str:
    """The number of comparisons in which the method is better, and significantly better, in words."""
    if not tests:
        return "not run"
    better = sum(each.comparison.test.difference < 0 for each in tests)
    return f"better in {better} of {len(tests)} comparisons, significantly in {sum(t.wins for t in tests)}"


def families(cells: pd.DataFrame) -> dict[str, list[Tested]]:
    """The families of tests that the page has."""
    return {
        "raw": tested(cells, POISE, ["none"]),
        "tempered": tested(cells, POISE, ["mean", "median"]),
        "rehearsed": tested(cells, POISE, ["rehearsed"]),
        "dec": tested(cells, DEC, ["none"]),
    }
