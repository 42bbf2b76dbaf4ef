"""Is one method better than the best of the others? Paired tests over the shifts.

The paper compares DEC "with the second best algorithm for each experiment" and does not name its test. Here a
pair is a shift, with the means over the seeds that both methods have: seeds of one shift are not independent
experiments on it. Where a shift comes in tiers, its tiers are pairs of their own, although they are not
independent either, so their p values are too small rather than too large. Nothing is corrected for how many
tests there are, nor for choosing the best of the others.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

from equipoise.errors import OptionError
from equipoise.report.numbers.runs import MethodVariant, Metric, Values, VariantScores
from equipoise.report.numbers.summary import BETTER, runs_of, shift_means

FEWEST_PAIRS = 3
"""With two pairs the t distribution has one degree of freedom, and Wilcoxon's p is never below 0.5."""

FOCAL = "dec"
"""The label of the method that is held against the others."""
LEAST_P = 1e-15
"""What is less is only said to be so: a p is never 0, and its digits there are those of rounding."""


@dataclass(frozen=True)
class PairedTest:
    """What paired samples say.

    Attributes:
        pairs: how many.
        difference: the mean of first minus second.
        low: lower end of its confidence interval, mean ± t(n−1)·s/√n; None for too few pairs.
        high: upper end of it.
        t_p: two-sided p of the paired t-test, t = mean/(s/√n); None for too few pairs.
        wilcoxon_p: two-sided p of Wilcoxon's signed-rank test; None for too few pairs.
    """

    pairs: int
    difference: float
    low: float | None = None
    high: float | None = None
    t_p: float | None = None
    wilcoxon_p: float | None = None

    @property
    def enough(self) -> bool:
        """Whether there are enough pairs for a test."""
        return self.pairs >= FEWEST_PAIRS

    @property
    def least_wilcoxon_p(self) -> float:
        """The least p that Wilcoxon's test can give for so many pairs, when all have one sign: 2/2ⁿ."""
        return float(2.0 ** (1 - self.pairs))


@dataclass(frozen=True)
class Comparison:
    """A method against the best of the others by one metric; the difference is method minus rival.

    Attributes:
        metric: by which.
        focal: the method.
        rival: the best of the others.
        focal_mean: the method's mean over the pairs.
        rival_mean: the rival's.
        test: of the pairs.
        passed_over: others that lack some of the method's runs, so that their means cannot be compared.
    """

    metric: Metric
    focal: MethodVariant
    rival: MethodVariant
    focal_mean: float
    rival_mean: float
    test: PairedTest
    passed_over: tuple[MethodVariant, ...] = ()


def paired_test(first: Collection[float], second: Collection[float], confidence: float = 0.95) -> PairedTest:
    """Two-sided paired t-test and Wilcoxon signed-rank test of first against second."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    pairs, mean = len(differences), fmean(differences)
    if pairs < FEWEST_PAIRS:
        return PairedTest(pairs, mean)
    error = stdev(differences) / math.sqrt(pairs)
    reach = error * float(stats.t.ppf((1 + confidence) / 2, pairs - 1))
    if not any(differences):  # nothing to rank, and 0/0 for t: no evidence of a difference
        return PairedTest(pairs, mean, mean, mean, 1.0, 1.0)
    return PairedTest(
        pairs=pairs,
        difference=mean,
        low=mean - reach,
        high=mean + reach,
        t_p=2 * float(stats.t.sf(abs(mean) / error, pairs - 1)) if error else 0.0,
        wilcoxon_p=float(stats.wilcoxon(differences).pvalue),
    )


def against_second_best(
    scores: VariantScores,
    metric: Metric,
    *,
    tempering: str = "mean",
    rivals: str | None = "none",
    among: Collection[str] | None = None,
) -> Comparison | None:
    """DEC against the other method with the best mean; None without results of both.

    Args:
        scores: of one table.
        metric: accuracy, ece, nll or brier; entropy has no best.
        tempering: what DEC's logits are divided by.
        rivals: what the logits of the others are divided by: "none", as in the paper; None for the same.
        among: the labels of the others; None for all that are another method than DEC.

    Other labels of DEC itself are no rivals. Those that lack more of its shifts and seeds than another does
    are passed over.
    """
    if not BETTER[metric]:
        raise OptionError(f"metric: expected one with a better and a worse, got {metric!r}")
    mine = scores.values(MethodVariant(FOCAL, tempering), metric)
    others_tempering = tempering if rivals is None else rivals
    others = {
        variant: common
        for variant in scores.variants
        if variant.tempering == others_tempering
        and scores.methods[variant.label] != scores.methods.get(FOCAL)
        and (among is None or variant.label in among)
        and (common := _shared(scores.values(variant, metric), mine))
    }
    if not others:
        return None

    most = max(map(runs_of, others.values()))
    compared = {variant: shift_means(each) for variant, each in others.items() if runs_of(each) == most}
    rival = max(compared, key=lambda variant: BETTER[metric] * fmean(compared[variant].values()))
    theirs = compared[rival]
    ours = shift_means(_shared(mine, others[rival]))
    return Comparison(
        metric=metric,
        focal=MethodVariant(FOCAL, tempering),
        rival=rival,
        focal_mean=fmean(ours.values()),
        rival_mean=fmean(theirs.values()),
        test=paired_test([ours[shift] for shift in theirs], list(theirs.values())),
        passed_over=tuple(variant for variant in others if variant not in compared),
    )


def describe_comparison(comparison: Comparison, name: Callable[[MethodVariant], str], title: str) -> str:
    """A comparison as a sentence; `name` gives the name of a variant, `title` is that of the metric."""
    test = comparison.test
    start = (
        f"{title}: {name(comparison.focal)} {comparison.focal_mean:.3f} against {comparison.rival_mean:.3f} "
        f"of {name(comparison.rival)}, the best of the others"
    )
    if comparison.passed_over:
        start += f" (but for {', '.join(map(name, comparison.passed_over))}, of which runs are missing)"
    if not test.enough:
        plural = "" if test.pairs == 1 else "s"
        return (
            f"{start}; too few pairs to test ({test.pairs} shift{plural}; at least {FEWEST_PAIRS} are needed "
            "to tell a difference from its spread)."
        )
    return (
        f"{start}; difference {test.difference:+.3f} (95% interval {test.low:+.3f} to {test.high:+.3f}), "
        f"paired t-test over {test.pairs} shifts {_p(test.t_p)}, Wilcoxon {_p(test.wilcoxon_p)}"
        + (f" (so few pairs cannot give less than {test.least_wilcoxon_p:.3g})." if test.pairs < 6 else ".")
    )


def _p(value: float | None) -> str:
    if value is None:
        return "p unknown"
    return f"p < {LEAST_P:g}" if value < LEAST_P else f"p = {value:.3g}"


def _shared(values: Values, other: Values) -> Values:
    """The values of shifts and seeds that the other has, too."""
    shared = {
        shift: {seed: value for seed, value in seeds.items() if seed in other.get(shift, ())}
        for shift, seeds in values.items()
    }
    return {shift: seeds for shift, seeds in shared.items() if seeds}
