import itertools
import math

import pandas as pd
import pytest
from scipy import stats

from equipoise.errors import OptionError
from equipoise.research.report.results import Variant
from equipoise.research.report.significance import (
    against_best_other,
    alike_best,
    comparisons,
    holm,
    paired_test,
)

FIRST = [0.08, 0.047, 0.039, 0.018, 0.07]
SECOND = [0.279, 0.301, 0.186, 0.167, 0.06]


def signed_rank_p(differences: list[float]) -> float:
    """Two-sided exact p of the signed-rank test: every choice of signs counted."""
    order = sorted(differences, key=abs)
    ranks = range(1, len(order) + 1)
    positive = sum(rank for rank, value in zip(ranks, order, strict=True) if value > 0)
    least = min(positive, sum(ranks) - positive)
    sums = [sum(chosen) for size in range(len(order) + 1) for chosen in itertools.combinations(ranks, size)]
    return min(1.0, 2 * sum(each <= least for each in sums) / len(sums))


def test_t_and_wilcoxon_are_those_of_scipy_and_of_every_choice_of_signs() -> None:
    test, reference = paired_test(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    differences = [one - other for one, other in zip(FIRST, SECOND, strict=True)]
    assert test.pairs == 5
    assert test.difference == pytest.approx(sum(differences) / 5)
    assert test.t_p == pytest.approx(reference.pvalue)
    assert (test.low, test.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert test.wilcoxon_p == pytest.approx(stats.wilcoxon(FIRST, SECOND).pvalue)
    assert test.wilcoxon_p == pytest.approx(signed_rank_p(differences))


@pytest.mark.parametrize("pairs", [1, 2])
def test_too_few_pairs_are_not_tested(pairs: int) -> None:
    test = paired_test(FIRST[:pairs], SECOND[:pairs])
    assert test.difference == pytest.approx((sum(FIRST[:pairs]) - sum(SECOND[:pairs])) / pairs)
    assert (test.low, test.high, test.t_p, test.wilcoxon_p) == (None, None, None, None)


def test_no_difference_and_a_difference_without_spread() -> None:
    same = paired_test([0.5] * 4, [0.5] * 4)
    assert (same.difference, same.low, same.high, same.t_p, same.wilcoxon_p) == (0, 0, 0, 1, 1)
    shifted = paired_test([1.0] * 4, [0.5] * 4)
    assert (shifted.low, shifted.high, shifted.t_p) == (0.5, 0.5, 0)
    assert shifted.wilcoxon_p == pytest.approx(0.125)


def test_of_unequal_lengths_nothing_is_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_test([1.0, 2.0, 3.0], [1.0, 2.0])


def scored(ece: dict[Variant, dict[str, list[float]]], methods: dict[str, str] | None = None) -> pd.DataFrame:
    """Rows with these ECEs by variant, target and seed; accuracy is 1 - ECE."""
    rows = [
        {"name": name, "tempering": tempering, "method": (methods or {}).get(name, name), "shift": target}
        | {"seed": seed, "accuracy": 1 - value, "ece": value, "nll": value, "entropy": value}
        for (name, tempering), targets in ece.items()
        for target, values in targets.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


DEC, TENT, ETA = Variant("dec", "mean"), Variant("tent", "none"), Variant("eta", "none")
RELEASED, DIVIDED = Variant("dec-released", "none"), Variant("tent", "mean")
ECES: dict[Variant, dict[str, list[float]]] = {
    DEC: {"a": [0.1, 0.2], "b": [0.05, 0.05], "c": [0.3, 0.1], "d": [0.02, 0.06]},
    TENT: {"a": [0.3, 0.4], "b": [0.2, 0.1], "c": [0.4, 0.4], "d": [0.02, 0.02]},
    ETA: {"a": [0.2, 0.4], "b": [0.2, 0.1], "c": [0.4, 0.4], "d": [0.1, 0.1]},
    RELEASED: {"a": [0, 0], "b": [0, 0], "c": [0, 0], "d": [0, 0]},
    DIVIDED: {"a": [0.1, 0.1], "b": [0.05, 0.15], "c": [0.2, 0.2], "d": [0.1, 0.1]},
}
SCORED = scored(ECES, {"dec-released": "dec"})


FEW = {"a": [0.0], "b": [0.0], "c": [0.0]}


def means(variant: Variant) -> list[float]:
    return [sum(values) / len(values) for values in ECES[variant].values()]


def test_the_second_best_is_the_best_of_the_others_with_seed_means_as_pairs() -> None:
    found = against_best_other(SCORED, "ece", DEC, "none")
    assert found is not None
    assert (found.focal, found.rival) == (DEC, TENT)  # .2300 against ETA's .2375; dec-released is DEC itself
    assert (found.focal_mean, found.rival_mean) == pytest.approx((0.11, 0.23))
    assert found.test == pytest.approx(paired_test(means(DEC), means(TENT)))
    assert found.passed_over == ()


@pytest.mark.parametrize(
    ("metric", "focal", "rivals", "among", "rival", "difference"),
    [
        ("accuracy", DEC, "none", None, TENT, 0.12),  # higher is better
        ("ece", DEC, "mean", None, DIVIDED, 0.11 - 0.125),
        ("ece", DEC, "none", ["eta"], ETA, 0.11 - 0.2375),
        ("ece", TENT, "none", None, RELEASED, 0.23),
    ],
)
def test_rivals_are_raw_divided_alike_or_chosen(
    metric: str, focal: Variant, rivals: str, among: list[str] | None, rival: Variant, difference: float
) -> None:
    found = against_best_other(SCORED, metric, focal, rivals, among)
    assert found is not None
    assert found.rival == rival
    assert found.test.difference == pytest.approx(difference)


def test_any_method_can_be_the_one_that_is_compared() -> None:
    assert [(each.metric, each.focal, each.rival) for each in comparisons(SCORED, "eta")] == [
        (metric, ETA, RELEASED) for metric in ("accuracy", "ece", "nll")
    ]
    assert [(each.metric, each.rival) for each in comparisons(SCORED, "dec")] == [
        ("accuracy", TENT),
        ("ece", TENT),
        ("nll", TENT),
        ("ece", DIVIDED),
        ("nll", DIVIDED),
    ]
    assert comparisons(SCORED, "nobody") == []


def test_without_the_method_or_its_rivals_there_is_nothing_to_compare() -> None:
    assert against_best_other(scored({TENT: ECES[TENT], ETA: ECES[ETA]}), "ece", DEC, "none") is None
    assert against_best_other(SCORED, "ece", Variant("dec", "median"), "none") is None
    assert against_best_other(SCORED, "ece", DEC, "fixed") is None
    assert against_best_other(scored({DEC: ECES[DEC]}), "ece", DEC, "none") is None


def test_entropy_has_no_better() -> None:
    with pytest.raises(OptionError, match="entropy"):
        against_best_other(SCORED, "entropy", DEC, "none")


def test_only_runs_that_both_have_are_compared_and_a_rival_that_lacks_some_is_passed_over() -> None:
    found = against_best_other(scored({DEC: ECES[DEC], TENT: FEW}), "ece", DEC, "none")
    assert found is not None
    assert found.test == pytest.approx(paired_test([0.1, 0.05, 0.3], [0.0, 0.0, 0.0]))
    found = against_best_other(scored({DEC: ECES[DEC], ETA: ECES[ETA], TENT: FEW}), "ece", DEC, "none")
    assert found is not None
    assert (found.rival, found.passed_over) == (ETA, (TENT,))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def pairs(scores: dict[str, list[float | None]], seeds: int = 1) -> pd.DataFrame:
    """Rows of each method's scores, pair by pair and seed by seed; None for a pair without a row."""
    rows = [
        {"name": name, "tempering": "none", "pair": at // seeds, "seed": at % seeds, "score": score}
        for name, several in scores.items()
        for at, score in enumerate(several)
        if score is not None
    ]
    return pd.DataFrame(rows)


def test_those_that_cannot_be_told_from_the_best_are_found() -> None:
    runs = pairs(
        {
            "best": [1.0, 2.0, 3.0, 4.0],
            "near": [1.1, 1.8, 3.1, 3.9],
            "far": [0.0, 1.1, 2.0, 2.9],
            "partial": [9.0],
        }
    )
    best, near, far = (Variant(name, "none") for name in ("best", "near", "far"))
    assert alike_best(runs, "score", 1, ["pair"]) == [best, near]
    assert alike_best(runs, "score", -1, ["pair"]) == [far]
    assert alike_best(runs[runs["pair"] < 2], "score", 1, ["pair"]) == [best]
    assert alike_best(runs.assign(score=math.nan), "score", 1, ["pair"]) == []


def test_repetitions_of_a_pair_are_one_pair_and_those_that_lack_one_take_no_part() -> None:
    runs = pairs({"best": [0.9, 0.9] * 4, "near": [0.8, 0.99] * 4, "half": [0.99, math.nan] * 4}, seeds=2)
    best, near = Variant("best", "none"), Variant("near", "none")
    # Each seed by itself, near is behind by 0.1 or ahead by 0.09; as pairs, behind by 0.005 everywhere.
    assert alike_best(runs, "score", 1, ["pair", "seed"]) == [best, near]
    assert alike_best(runs, "score", 1, ["pair"], ["seed"]) == [best]


def test_methods_that_lack_different_pairs_take_no_part() -> None:
    """Equally many are not the same: the means are of unlike pairs."""
    runs = pairs({"first": [None, *[0.9] * 3], "second": [0.91, None, 0.91, 0.91], "whole": [0.8] * 4})
    assert alike_best(runs, "score", 1, ["pair"]) == [Variant("whole", "none")]
    assert alike_best(runs[runs["name"] != "whole"], "score", 1, ["pair"]) == []
