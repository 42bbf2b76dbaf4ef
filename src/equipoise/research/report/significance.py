"""Paired tests over the shifts: is one method better than the best of the others?

The paper compares DEC "with the second best algorithm for each experiment" and does not name its test. Here a
pair is a shift, with the means over the seeds that both methods have: seeds of one shift are not independent
experiments on it. Where a shift comes in tiers, its tiers are pairs of their own, although they are not
independent either, so their p values are too small rather than too large. Comparisons with the best of the
others are corrected neither for their number nor for that choice; `alike_best` corrects for the number.
"""

import math
from collections.abc import Collection, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from equipoise.errors import OptionError
from equipoise.research.report.results import BETTER, Variant, variants

FEWEST_PAIRS = 3
"""With two pairs the t distribution has one degree of freedom, and Wilcoxon's p is never below 0.5."""
INTERVAL = 0.95
"""The confidence of the interval of a mean difference."""
SIGNIFICANT = 0.05
"""Of the tests whether a method can be told from the best."""
TIERED = "The tiers of a domain are pairs of their own but not independent: p is too small."


class PairedTest(NamedTuple):
    """The mean difference of so many pairs, its confidence interval, and two-sided p; None for too few pairs.

    The interval is mean ± t(n−1)·s/√n, and the t-test's t = mean/(s/√n).
    """

    pairs: int
    difference: float
    low: float | None = None
    high: float | None = None
    t_p: float | None = None
    wilcoxon_p: float | None = None


class Comparison(NamedTuple):
    """A method against the best of the others by one metric, with the means over the pairs.

    `passed_over` are others that lack some of the method's runs, so that their means cannot be compared.
    """

    metric: str
    focal: Variant
    rival: Variant
    focal_mean: float
    rival_mean: float
    test: PairedTest
    passed_over: tuple[Variant, ...] = ()


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Two-sided paired t-test and Wilcoxon signed-rank test of first against second."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    pairs, mean = len(differences), fmean(differences)
    if pairs < FEWEST_PAIRS:
        return PairedTest(pairs, mean)
    if not any(differences):  # nothing to rank, and 0/0 for t: no evidence of a difference
        return PairedTest(pairs, mean, mean, mean, 1.0, 1.0)
    reach = stdev(differences) / math.sqrt(pairs) * float(stats.t.ppf((1 + INTERVAL) / 2, pairs - 1))
    rank_p = float(stats.wilcoxon(differences).pvalue)
    return PairedTest(pairs, mean, mean - reach, mean + reach, _t_test(differences), rank_p)


def _t_test(differences: Sequence[float]) -> float:
    """Two-sided p of the t-test of differences that may be all zero: then 1."""
    if not any(differences):
        return 1.0
    error = stdev(differences) / math.sqrt(len(differences))
    freedom = len(differences) - 1
    return 2 * float(stats.t.sf(abs(fmean(differences)) / error, freedom)) if error else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for their number: the k-th smallest of n, times n − k + 1, no less than those before.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        adjusted[place] = least = max(least, min(1.0, p_values[place] * (len(p_values) - rank)))
    return adjusted


def alike_best(
    runs: pd.DataFrame, metric: str, better: int, pairs: Sequence[str], repeated: Sequence[str] = ()
) -> list[Variant]:
    """The best by a metric, and those that paired t-tests with it, adjusted by Holm, do not tell from it.

    Methods that lack a pair, or a repetition of one, which any other has take no part; none is found where
    all do. With too few pairs, only the best is left.

    Args:
        runs: rows with a name, a tempering, the columns of `pairs` and the metric.
        metric: the column.
        better: 1 where higher is better, -1 where lower is.
        pairs: the columns that name a pair.
        repeated: those that name its repetitions, as seeds: a pair has the means over them.
    """
    known = runs[runs[metric].notna()]
    if known.empty:
        return []
    wide = known.pivot_table(index=[*pairs, *repeated], columns=["name", "tempering"], values=metric)
    wide = wide.dropna(axis="columns")
    if wide.empty:
        return []
    wide = wide.groupby(level=list(pairs)).mean()
    means: dict[Any, float] = wide.mean().to_dict()
    best = max(means, key=lambda column: better * means[column])
    others = [column for column in means if column != best]
    found = [Variant(*best)]
    if len(wide) >= FEWEST_PAIRS:
        adjusted = holm([_t_test((wide[best] - wide[other]).tolist()) for other in others])
        found += [Variant(*other) for other, p in zip(others, adjusted, strict=True) if p >= SIGNIFICANT]
    return found


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
    """A method against the other one, with tempering `rivals`, that has the best mean; None without both.

    `among` names the others; all that are another method of the registry by default. Others that lack more of
    the method's shifts and seeds than another does are passed over.
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
    theirs, ours = means.loc[rival][metric].tolist(), means.loc[rival][f"{metric}_mine"].tolist()
    passed_over = tuple(Variant(name, rivals) for name in sizes if name not in whole)
    test = paired_test(ours, theirs)
    return Comparison(metric, focal, Variant(rival, rivals), fmean(ours), fmean(theirs), test, passed_over)
