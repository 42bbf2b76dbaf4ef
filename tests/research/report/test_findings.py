"""Findings against numbers written by hand."""

from typing import Any

import pytest

from equipoise.research.report.page import (
    best_of,
    cautions,
    direction,
    overall_findings,
    part_findings,
    tempering_counts,
)
from equipoise.research.report.part import parts
from equipoise.research.report.results import Variant
from tests.research.report.written import last_bin, line, made, part

CERTAIN = [
    line("source", entropy=1.0, ece=0.3, accuracy=0.6, reliability=last_bin(10, 9.0, 6)),
    line("tent", entropy=0.5, ece=0.4, accuracy=0.7),
    line("eta", entropy=0.5, ece=0.2, accuracy=0.65),
    line("norm", entropy=1.5, ece=0.5, accuracy=0.5),
    line("dec", "mean", entropy=2.0, ece=0.1, nll=1.0, accuracy=0.7),
]


def test_over_certainty_is_counted() -> None:
    over, dec = overall_findings([part(CERTAIN)])
    assert "more certain than no adaptation in 2 of 3 cases; in 1 also worse calibrated" in over
    assert (
        "better than every other method raw by ECE in 1 of 1, by NLL in 1 of 1 and by accuracy in 0 of 1"
        in dec
    )


def test_a_part_has_its_certainty_and_its_best() -> None:
    told = part_findings(part(CERTAIN))
    assert told == [
        "Without adaptation, 60.0% of answers are right, at a confidence of 90.0%.",
        "Raw, more certain and worse calibrated than that: tent (1 of 3 methods).",
        "Best: ECE 0.100, dec (mean); NLL 1.000, dec (mean); accuracy 0.700, tent and dec.",
    ]


def test_only_the_complete_can_be_best() -> None:
    lines = [line("tent", target=target, ece=0.2) for target in "ab"]
    lines += [line("eta", target=target, ece=0.3) for target in "ab"]
    assert best_of(part([*lines, line("dec", target="a", ece=0.0)]))["ECE"] == ("tent (raw)", 0.2)


def test_methods_are_compared_on_the_runs_that_both_have() -> None:
    eces = ("tent", "a", 0.3), ("tent", "b", 0.9), ("eta", "a", 0.4)
    one = part([line(name, target=target, ece=ece) for name, target, ece in eces])
    tent, eta = Variant("tent", "none"), Variant("eta", "none")
    assert [direction(one, *pair, "ece") for pair in ((tent, eta), (eta, tent), (tent, tent))] == [-1, 1, 0]
    assert direction(one, tent, Variant("eta", "mean"), "ece") is None


def test_temperings_are_counted_over_cases_and_none_is_left_out() -> None:
    lines = [line(name, ece=0.3, nll=1.0) for name in ("tent", "eta")]
    lines += [line(name, "rehearsed", ece=ece, nll=1.0) for name, ece in (("tent", 0.1), ("eta", 0.4))]
    (table,) = tempering_counts([part(lines)], "online")
    assert list(table.frame.index) == ["rehearsed instead of raw"]
    assert [entry.value for _, _, entry in table.entries] == [2, 1, 1, 0, 0]
    assert tempering_counts([part([line()])], "online") == []


def test_cautions() -> None:
    older = [line("norm", code="old"), line("norm", seed=1, code="new")]
    lines = [line("eta", code=""), line(left_out=2), line(seed=1), line("tent", error="no"), *older]
    results = made(lines, damaged=3)
    assert cautions(results, parts(results)) == [
        "PACS with EfficientNetB0 is not complete: 1 of 4 domains, 2 of 3 seeds.",
        "1 cell failed; numbers that lack them are marked ‡.",
        "Left out: 3 lines that could not be read.",
        "Left out: 1 result of older code of the method, or of another rehearsal.",
        "Up to 2 image files of a stream and its training set could not be read.",
        "Not known: the code that made 1 result, written by an older equipoise.",
    ]


@pytest.mark.parametrize("lines", [[line("tent")], [line("dec", "median")]])
def test_without_a_base_less_is_said(lines: list[dict[str, Any]]) -> None:
    assert overall_findings([part(lines)]) == []
    assert part_findings(part(lines)) == []
