import numpy as np
import pytest

from equipoise.report.numbers.runs import ShiftKey
from equipoise.report.numbers.summary import (
    at_target,
    at_tier,
    domain_mean,
    domain_std,
    domain_variance,
    gap,
    largest_domain_variance,
    largest_run_variance,
    run_std,
    run_variance,
    runs_of,
    sample_variance,
    seed_averages,
    shift_means,
)

SCORES = np.array([[0.1, 0.3, 0.8], [0.5, 0.5, 0.2], [0.9, 0.0, 0.4], [0.25, 0.35, 0.7]])  # domain, seed
VALUES = {
    ShiftKey(f"d{domain}", None): {seed: float(value) for seed, value in enumerate(row)}
    for domain, row in enumerate(SCORES)
}
OTHERS = {shift: {seed: value / 2 for seed, value in seeds.items()} for shift, seeds in VALUES.items()}


def test_means_are_over_seeds_first_then_over_domains() -> None:
    assert list(shift_means(VALUES).values()) == pytest.approx(SCORES.mean(axis=1))
    assert domain_mean(VALUES) == pytest.approx(SCORES.mean())
    uneven = {**VALUES, ShiftKey("d0", None): {0: 0.1}}
    assert domain_mean(uneven) == pytest.approx((0.1 + SCORES[1:].mean(axis=1).sum()) / 4)


def test_spread_over_domains_is_that_of_a_sample() -> None:
    assert domain_variance(VALUES) == pytest.approx(np.var(SCORES.mean(axis=1), ddof=1))
    assert domain_std(VALUES) == pytest.approx(np.std(SCORES.mean(axis=1), ddof=1))
    assert largest_domain_variance([OTHERS, VALUES, {}]) == pytest.approx(np.var(SCORES.mean(axis=1), ddof=1))


def test_run_to_run_is_over_seeds_of_the_average_over_domains() -> None:
    assert seed_averages(VALUES) == pytest.approx(dict(enumerate(SCORES.mean(axis=0))))
    assert run_variance(VALUES) == pytest.approx(np.var(SCORES.mean(axis=0), ddof=1))
    assert run_std(VALUES) == pytest.approx(np.std(SCORES.mean(axis=0), ddof=1))
    assert largest_run_variance([OTHERS, {}, VALUES]) == pytest.approx(np.var(SCORES.mean(axis=0), ddof=1))


def test_a_seed_that_lacks_a_domain_is_not_in_the_run_to_run_variance() -> None:
    uneven = {**VALUES, ShiftKey("d0", None): {0: 0.1, 1: 0.3}}
    assert seed_averages(uneven) == pytest.approx(dict(enumerate(SCORES[:, :2].mean(axis=0))))


def test_too_little_for_a_spread() -> None:
    one_domain = {ShiftKey("d0", None): {0: 0.1, 1: 0.2}}
    one_seed = {ShiftKey("d0", None): {0: 0.1}, ShiftKey("d1", None): {0: 0.2}}
    assert domain_variance(one_domain) is None
    assert domain_std(one_domain) is None
    assert run_variance(one_seed) is None
    assert run_std(one_seed) is None
    assert largest_domain_variance([one_domain]) is None
    assert largest_run_variance([one_seed, {}]) is None
    assert sample_variance([]) is None
    assert domain_mean({}) is None
    assert seed_averages({}) == {}


def test_only_a_tier_or_a_domain() -> None:
    values = {ShiftKey(target, tier): {0: tier * 1.0} for target in "ab" for tier in (1, 2)}
    assert at_tier(values, 2) == {ShiftKey("a", 2): {0: 2.0}, ShiftKey("b", 2): {0: 2.0}}
    assert at_target(values, "b") == {ShiftKey("b", 1): {0: 1.0}, ShiftKey("b", 2): {0: 2.0}}
    assert runs_of(values) == 4


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
    values = {
        ShiftKey(f"d{number}", None): dict.fromkeys(range(count), 0.5) for number, count in enumerate(seeds)
    }
    assert gap(values, 4, [0, 1, 2]) == expected


def test_gaps_are_of_the_seeds_that_are_expected() -> None:
    assert gap({ShiftKey("a", None): {7: 0.5, 8: 0.5, 0: 0.5}}, 1, [0, 1, 2]) == "1 of 3 seeds"
    assert gap({ShiftKey("a", 1): {0: 0.5}}, 2, [0], "shift") == "1 of 2 shifts"
