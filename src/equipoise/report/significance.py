"""Paired tests over the shifts: is one method better than the best of the others?

The paper compares DEC "with the second best algorithm for each experiment" and does not name its test. Here a
pair is a shift, with the means over the seeds that both methods have: seeds of one shift are not independent
experiments on it. Where a shift comes in tiers, its tiers are pairs of their own, although they are not
independent either, so their p values are too small rather than too large. Nothing is corrected for the number
of tests, nor for choosing the best of the others.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import pandas as pd
from scipy import stats

from equipoise.errors import OptionError
from equipoise.report.results import BETTER, Variant, variants
from equipoise.report.table import LEAST_P

FEWEST_PAIRS = 3
"""With two pairs the t distribution has one degree of freedom, and Wilcoxon's p is never below 0.5."""


@dataclass(frozen=True)
class PairedTest:
    """The result of paired tests.

    Attributes:
        pairs: their number.
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

    metric: str
    focal: Variant
    rival: Variant
    focal_mean: float
    rival_mean: float
    test: PairedTest
    passed_over: tuple[Variant, ...] = ()

    def told(self, focal: str, rival: str, metric: str) -> str:
        """A sentence, with these names."""
        test = self.test
        start = f"{metric}: {focal} {self.focal_mean:.3f} against {self.rival_mean:.3f} of {rival}, the best of the others"
        if test.low is None or test.high is None:
            return f"{start}; too few pairs to test ({test.pairs}; at least {FEWEST_PAIRS} shifts are needed)."
        least = f" (so few pairs cannot give less than {2.0 ** (1 - test.pairs):.3g})" if test.pairs < 6 else ""
        return (
            f"{start}; difference {test.difference:+.3f} (95% interval {test.low:+.3f} to {test.high:+.3f}), "
            f"paired t-test over {test.pairs} shifts {_p(test.t_p)}, Wilcoxon {_p(test.wilcoxon_p)}{least}."
        )


def paired_test(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> PairedTest:
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


def comparisons(runs: pd.DataFrame, name: str) -> list[Comparison]:
    """A method against the best of the others, of one scope's rows.

    By ECE and NLL for each of its temperings: against the others raw, as the paper does it, and against the
    others with the same tempering. By accuracy once, since dividing the logits does not change it.
    """
    own = [variant for variant in variants(runs) if variant.name == name]
    tried = [("accuracy", own[0], "none")] if own else []
    for variant in own:
        for rivals in dict.fromkeys(("none", variant.tempering)):
            tried += [(metric, variant, rivals) for metric in ("ece", "nll")]
    made = (against_best_other(runs, *each) for each in tried)
    return [comparison for comparison in made if comparison is not None]


def against_best_other(
    runs: pd.DataFrame, metric: str, focal: Variant, rivals: str, among: Collection[str] | None = None
) -> Comparison | None:
    """A method against the other one with the best mean; None without results of both.

    Args:
        runs: the rows of one scope.
        metric: accuracy, ece, nll or brier; entropy has no best.
        focal: the method and its tempering.
        rivals: the tempering of the others.
        among: the names of the others; None for all that are another method of the registry.

    Others that lack more of the method's shifts and seeds than another does are passed over.
    """
    if not BETTER[metric]:
        raise OptionError(f"metric: expected one with a better and a worse, got {metric!r}")
    runs = runs[["name", "tempering", "method", "shift", "seed", metric]]
    mine = runs[(runs["name"] == focal.name) & (runs["tempering"] == focal.tempering)]
    others = runs[(runs["tempering"] == rivals) & ~runs["method"].isin(mine["method"])]
    if among is not None:
        others = others[others["name"].isin(list(among))]
    pairs = others.merge(mine[["shift", "seed", metric]], on=["shift", "seed"], suffixes=("", "_mine"))
    if pairs.empty:
        return None
    sizes = {str(name): len(rows) for name, rows in pairs.groupby("name", sort=False)}
    whole = [name for name, size in sizes.items() if size == max(sizes.values())]
    means = pairs.groupby(["name", "shift"])[[metric, f"{metric}_mine"]].mean()
    averages = means[metric].groupby("name").mean()
    rival = max(whole, key=lambda name: BETTER[metric] * float(averages[name]))
    chosen = means.loc[rival]
    theirs, ours = chosen[metric].tolist(), chosen[f"{metric}_mine"].tolist()
    return Comparison(
        metric=metric,
        focal=focal,
        rival=Variant(rival, rivals),
        focal_mean=fmean(ours),
        rival_mean=fmean(theirs),
        test=paired_test(ours, theirs),
        passed_over=tuple(Variant(name, rivals) for name in sizes if name not in whole),
    )


def _p(value: float | None) -> str:
    if value is None:
        return "p unknown"
    return f"p < {LEAST_P:g}" if value < LEAST_P else f"p = {value:.3g}"
