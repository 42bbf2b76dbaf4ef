"""Means and variances over seeds and domains: pure functions of one metric by shift and seed.

A mean over seeds comes first, so that every domain counts the same however many seeds it has. Variances are
those of a sample, Σ(x − x̄)²/(n − 1): from the four domains of the paper's Home Office table this gives its
sigma²_max (0.117, 0.0117 and 6.469; printed are 0.116, 0.011 and 6.467), and division by n does not.
"""

from collections.abc import Collection, Iterable
from statistics import fmean, variance

from equipoise.report.numbers.runs import Metric, ShiftKey, Values

BETTER: dict[Metric, int] = {"accuracy": 1, "ece": -1, "nll": -1, "brier": -1, "entropy": 0}
"""1 where higher is better, -1 where lower is; entropy has no better."""


def shift_means(values: Values) -> dict[ShiftKey, float]:
    """The mean over the seeds of each shift."""
    return {shift: fmean(seeds.values()) for shift, seeds in values.items()}


def domain_mean(values: Values) -> float | None:
    """The mean over the shifts of their means over seeds; None where there are no results."""
    return fmean(shift_means(values).values()) if values else None


def domain_variance(values: Values) -> float | None:
    """The sample variance over the shifts of their means over seeds; None for fewer than two."""
    return sample_variance(shift_means(values).values())


def domain_std(values: Values) -> float | None:
    """The square root of `domain_variance`, which the paper prints as a subscript."""
    return _root(domain_variance(values))


def seed_averages(values: Values) -> dict[int, float]:
    """The mean over the shifts for every seed that has them all; without one it would be of other shifts."""
    seeds = set.intersection(*(set(each) for each in values.values())) if values else set()
    return {seed: fmean(each[seed] for each in values.values()) for seed in sorted(seeds)}


def run_variance(values: Values) -> float | None:
    """Run-to-run: the sample variance over seeds of the mean over shifts; None for fewer than two seeds."""
    return sample_variance(seed_averages(values).values())


def run_std(values: Values) -> float | None:
    """The square root of `run_variance`."""
    return _root(run_variance(values))


def largest_domain_variance(algorithms: Iterable[Values]) -> float | None:
    """The paper's domain-to-domain sigma²_max: the largest `domain_variance` of any algorithm."""
    return _largest(domain_variance(values) for values in algorithms)


def largest_run_variance(algorithms: Iterable[Values]) -> float | None:
    """Run-to-run sigma²_max: the largest `run_variance` of any algorithm (and network, for the paper)."""
    return _largest(run_variance(values) for values in algorithms)


def sample_variance(numbers: Iterable[float]) -> float | None:
    """Σ(x − x̄)²/(n − 1); None for fewer than two numbers."""
    there = list(numbers)
    return variance(there) if len(there) > 1 else None


def gap(values: Values, shifts: int, seeds: Collection[int], noun: str = "domain") -> str:
    """What is missing of so many shifts with these seeds each, in words: "3 of 4 domains, 1 of 3 seeds"."""
    if not values:
        return "no results"
    told = []
    if len(values) < shifts:
        told.append(f"{len(values)} of {shifts} {noun}s")
    counts = {len(set(each) & set(seeds)) for each in values.values()}
    if min(counts) < len(seeds):
        few = f"{min(counts)} of {len(seeds)} seeds"
        told.append(few if len(counts) == 1 else f"on some {noun}s {few}")
    return ", ".join(told)


def at_tier(values: Values, tier: int | None) -> Values:
    """Only the shifts of one tier."""
    return {shift: seeds for shift, seeds in values.items() if shift.tier == tier}


def at_target(values: Values, target: str) -> Values:
    """Only the shifts to one domain."""
    return {shift: seeds for shift, seeds in values.items() if shift.target == target}


def coverage(values: Values) -> frozenset[tuple[ShiftKey, frozenset[int]]]:
    """The shifts, and the seeds of each, that a number is of; numbers of different ones are not compared."""
    return frozenset((shift, frozenset(seeds)) for shift, seeds in values.items())


def runs_of(values: Values) -> int:
    """How many results a number is of."""
    return sum(map(len, values.values()))


def _largest(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _root(number: float | None) -> float | None:
    return None if number is None else float(number**0.5)
