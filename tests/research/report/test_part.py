"""Means, deviations and gaps of one scope, against numpy."""

from typing import Any

import numpy as np
import pytest

from equipoise.research.report.part import Place, gap
from tests.research.report.written import line, part

SCORES = np.array([[0.1, 0.3, 0.8], [0.5, 0.5, 0.2], [0.9, 0.0, 0.4], [0.25, 0.35, 0.7]])  # domain, seed
AVERAGE = Place("tent", "none")


def scored(scores: np.ndarray[Any, Any], **others: Any) -> list[dict[str, Any]]:
    return [
        line("tent", target=f"d{domain}", seed=seed, ece=float(value), **others)
        for domain, row in enumerate(scores)
        for seed, value in enumerate(row)
        if not np.isnan(value)
    ]


def test_means_are_over_seeds_first_then_over_domains() -> None:
    found = part(scored(SCORES)).at
    assert found[AVERAGE].mean["ece"] == pytest.approx(SCORES.mean())
    assert found[Place("tent", "none", "domain", "d1")].mean["ece"] == pytest.approx(SCORES[1].mean())
    uneven = SCORES.copy()
    uneven[0, 1:] = np.nan
    expected = (0.1 + SCORES[1:].mean(axis=1).sum()) / 4
    assert part(scored(uneven)).at[AVERAGE].mean["ece"] == pytest.approx(expected)


def test_deviations_are_those_of_a_sample_over_the_seeds_that_have_every_domain() -> None:
    one = part(scored(SCORES))
    found = one.at[AVERAGE].std
    assert found["domains"]["ece"] == pytest.approx(np.std(SCORES.mean(axis=1), ddof=1))
    assert found["seeds"]["ece"] == pytest.approx(np.std(SCORES.mean(axis=0), ddof=1))
    own = one.at[Place("tent", "none", "domain", "d2")].std
    assert own["seeds"]["ece"] == pytest.approx(np.std(SCORES[2], ddof=1))
    assert np.isnan(own["domains"]["ece"])
    assert one.spread == "seeds"
    uneven = SCORES.copy()
    uneven[0, 2] = np.nan
    lacking = part(scored(uneven)).at[AVERAGE].std["seeds"]["ece"]
    assert lacking == pytest.approx(np.std(SCORES[:, :2].mean(axis=0), ddof=1))
    single = part(scored(SCORES[:, :1]))
    assert single.spread == "domains"
    assert np.isnan(single.at[AVERAGE].std["seeds"]["ece"])


def test_tiers_have_places_of_their_own() -> None:
    lines = [each for tier in (1, 2) for each in scored(SCORES * tier, tier=tier)]
    one = part(lines)
    assert one.axis == ("tier", ["1", "2"])
    assert one.at[Place("tent", "none", "tier", "2")].mean["ece"] == pytest.approx(2 * SCORES.mean())
    means = SCORES.mean(axis=1)
    found = one.at[Place("tent", "none", "tier", "2")].std["domains"]["ece"]
    assert found == pytest.approx(np.std(2 * means, ddof=1))
    assert one.at[Place("tent", "none", "domain", "d0")].mean["ece"] == pytest.approx(1.5 * means[0])
    every = np.std([*means, *2 * means], ddof=1)
    assert one.at[AVERAGE].std["domains"]["ece"] == pytest.approx(every)


def test_a_method_is_whole_if_it_has_what_the_others_have() -> None:
    one = part([*scored(SCORES), *(line("dec", target="d0", seed=seed) for seed in (0, 1))])
    names = {variant.name: one.whole(variant) for variant in one.variants}
    assert names == {"tent": True, "dec": False}
    assert one.missing(Place("dec", "none")) == "1 of 4 domains, 2 of 3 seeds"
    assert one.missing(Place("dec", "none", "domain", "d3")) == "no results"


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([], "no results"),
        ([3, 3, 3, 3], ""),
        ([3, 3], "2 of 4 domains"),
        ([1, 1, 1, 1], "1 of 3 seeds"),
        ([2, 2], "2 of 4 domains, 2 of 3 seeds"),
        ([3, 1, 3, 3], "on some domains 1 of 3 seeds"),
    ],
)
def test_gaps_in_words(seeds: list[int], expected: str) -> None:
    coverage = frozenset((f"d{number}", seed) for number, count in enumerate(seeds) for seed in range(count))
    assert gap(coverage, 4, [0, 1, 2]) == expected


def test_gaps_are_of_the_seeds_that_are_expected() -> None:
    assert gap(frozenset({("a", 7), ("a", 8), ("a", 0)}), 1, [0, 1, 2]) == "1 of 3 seeds"
    assert gap(frozenset({("a", 0)}), 2, [0], "shift") == "1 of 2 shifts"
