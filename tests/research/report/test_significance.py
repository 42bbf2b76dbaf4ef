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


def t_tail(t: float, freedom: int) -> float:
    """P(T > t), the density of Student's t integrated by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))

    def density(x: float) -> float:
        return scale * math.pow(1 + x * x / freedom, -(freedom + 1) / 2)

    steps = 20_000
    width = t / steps
    weights = [1, *([4, 2] * (steps // 2))]
    weights[-1] = 1
    return 0.5 - width / 3 * sum(weight * density(k * width) for k, weight in enumerate(weights))


def signed_rank_p(differences: list[float]) -> float:
    """Two-sided exact p of the signed-rank test: every choice of signs counted."""
    order = sorted(differences, key=abs)
    ranks = range(1, len(order) + 1)
    positive = sum(rank for rank, value in zip(ranks, order, strict=True) if value > 0)
    least = min(positive, sum(ranks) - positive)
    sums = [sum(chosen) for size in range(len(order) + 1) for chosen in itertools.combinations(ranks, size)]
    return min(1.0, 2 * sum(each <= least for each in sums) / len(sums))


def test_t_and_wilcoxon_against_formulas_and_scipy() -> None:
    test = paired_test(FIRST, SECOND)
    differences = [one - other for one, other in zip(FIRST, SECOND, strict=True)]
    mean = sum(differences) / 5
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / 4)
    t = mean / (deviation / math.sqrt(5))
    assert test.t_p is not None
    assert test.wilcoxon_p is not None
    assert test.pairs == 5
    assert test.difference == pytest.approx(mean)
    assert test.t_p == pytest.approx(2 * t_tail(abs(t), 4), rel=1e-6)
    assert test.wilcoxon_p == pytest.approx(signed_rank_p(differences))
    reference = stats.ttest_rel(FIRST, SECOND)
    assert test.t_p == pytest.approx(reference.pvalue)
    assert (test.low, test.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert test.wilcoxon_p == pytest.approx(stats.wilcoxon(FIRST, SECOND).pvalue)


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
ECES: dict[Variant, dict[str, list[float]]] = {
    DEC: {"a": [0.1, 0.2], "b": [0.05, 0.05], "c": [0.3, 0.1], "d": [0.02, 0.06]},
    TENT: {"a": [0.3, 0.4], "b": [0.2, 0.1], "c": [0.4, 0.4], "d": [0.02, 0.02]},
    ETA: {"a": [0.2, 0.4], "b": [0.2, 0.1], "c": [0.4, 0.4], "d": [0.1, 0.1]},
    Variant("dec-released", "none"): {"a": [0, 0], "b": [0, 0], "c": [0, 0], "d": [0, 0]},
    Variant("tent", "mean"): {"a": [0.1, 0.1], "b": [0.05, 0.15], "c": [0.2, 0.2], "d": [0.1, 0.1]},
}
SCORED = scored(ECES, {"dec-released": "dec"})


def means(variant: Variant) -> list[float]:
    return [sum(values) / len(values) for values in ECES[variant].values()]


def test_the_second_best_is_the_best_of_the_others_with_seed_means_as_pairs() -> None:
    found = against_best_other(SCORED, "ece", DEC, "none")
    assert found is not None
    assert (found.focal, found.rival) == (DEC, TENT)  # .2300 against ETA's .2375; dec-released is DEC itself
    assert (found.focal_mean, found.rival_mean) == pytest.approx((0.11, 0.23))
    assert found.test == pytest.approx(paired_test(means(DEC), means(TENT)))
    assert found.passed_over == ()


def test_higher_accuracy_is_better() -> None:
    found = against_best_other(SCORED, "accuracy", DEC, "none")
    assert found is not None
    assert found.rival == TENT
    assert found.test.difference == pytest.approx(0.12)


def test_rivals_divided_alike_or_chosen() -> None:
    found = against_best_other(SCORED, "ece", DEC, "mean")
    assert found is not None
    assert found.rival == Variant("tent", "mean")
    assert found.test.difference == pytest.approx(0.11 - 0.125)
    chosen = against_best_other(SCORED, "ece", DEC, "none", among=["eta"])
    assert chosen is not None
    assert chosen.rival == ETA


def test_any_method_can_be_the_one_that_is_compared() -> None:
    found = against_best_other(SCORED, "ece", TENT, "none")
    assert found is not None
    assert found.rival == Variant("dec-released", "none")
    assert [(each.metric, each.focal, each.rival) for each in comparisons(SCORED, "eta")] == [
        (metric, ETA, Variant("dec-released", "none")) for metric in ("accuracy", "ece", "nll")
    ]
    assert [(each.metric, each.rival) for each in comparisons(SCORED, "dec")] == [
        ("accuracy", TENT),
        ("ece", TENT),
        ("nll", TENT),
        ("ece", Variant("tent", "mean")),
        ("nll", Variant("tent", "mean")),
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


def test_only_runs_that_both_have_are_compared() -> None:
    few = {"a": [0.0], "b": [0.0], "c": [0.0]}
    found = against_best_other(scored({DEC: ECES[DEC], TENT: few}), "ece", DEC, "none")
    assert found is not None
    assert found.test == pytest.approx(paired_test([0.1, 0.05, 0.3], [0.0, 0.0, 0.0]))


def test_a_rival_that_lacks_runs_is_passed_over_and_told() -> None:
    few = {"a": [0.0], "b": [0.0], "c": [0.0]}
    found = against_best_other(scored({DEC: ECES[DEC], ETA: ECES[ETA], TENT: few}), "ece", DEC, "none")
    assert found is not None
    assert (found.rival, found.passed_over) == (ETA, (TENT,))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_those_that_cannot_be_told_from_the_best_are_found() -> None:
    values = {"best": [1.0, 2.0, 3.0, 4.0], "near": [1.1, 1.8, 3.1, 3.9], "far": [0.0, 1.1, 2.0, 2.9]}
    rows = [
        {"name": name, "tempering": "none", "pair": place, "score": value}
        for name, several in values.items()
        for place, value in enumerate(several)
    ]
    rows.append({"name": "partial", "tempering": "none", "pair": 0, "score": 9.0})
    runs = pd.DataFrame(rows)
    assert alike_best(runs, "score", 1, ["pair"]) == [Variant("best", "none"), Variant("near", "none")]
    assert alike_best(runs, "score", -1, ["pair"]) == [Variant("far", "none")]
    assert alike_best(runs[runs["pair"] < 2], "score", 1, ["pair"]) == [Variant("best", "none")]
    assert alike_best(runs.assign(score=float("nan")), "score", 1, ["pair"]) == []


def test_repetitions_of_a_pair_are_one_pair_and_those_that_lack_one_take_no_part() -> None:
    scores = {"best": (0.9, 0.9), "near": (0.8, 0.99), "half": (0.99, math.nan)}
    rows = [
        {"name": name, "tempering": "none", "pair": pair, "seed": seed, "score": several[seed]}
        for name, several in scores.items()
        for pair in range(4)
        for seed in (0, 1)
    ]
    runs = pd.DataFrame(rows)
    # Each seed by itself, near is behind by 0.1 or ahead by 0.09; as pairs, behind by 0.005 everywhere.
    apart = alike_best(runs, "score", 1, ["pair", "seed"])
    assert apart == [Variant("best", "none"), Variant("near", "none")]
    assert alike_best(runs, "score", 1, ["pair"], ["seed"]) == [Variant("best", "none")]


def test_methods_that_lack_different_pairs_take_no_part() -> None:
    """Equally many are not the same: the means are of unlike pairs."""
    lacking = {"first": (0.9, 0), "second": (0.91, 1), "whole": (0.8, None)}
    rows = [
        {"name": name, "tempering": "none", "pair": pair, "score": score}
        for name, (score, lacked) in lacking.items()
        for pair in range(4)
        if pair != lacked
    ]
    runs = pd.DataFrame(rows)
    assert alike_best(runs, "score", 1, ["pair"]) == [Variant("whole", "none")]
    assert alike_best(runs[runs["name"] != "whole"], "score", 1, ["pair"]) == []
