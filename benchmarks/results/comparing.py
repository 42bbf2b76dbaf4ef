"""A method against rivals on the streams that both have."""

from collections.abc import Sequence

import pandas as pd

from benchmarks.results.measured import RIVALS
from equipoise.research.report.results import BETTER, Variant
from equipoise.research.report.significance import Comparison, against_best_other


def against_each(
    rows: pd.DataFrame,
    metric: str,
    focal: Variant,
    temperings: Sequence[str],
    rivals: Sequence[str] = RIVALS,
) -> list[Comparison]:
    """A method against every rival with every tempering, over the shifts and seeds that both have.

    Comparisons that lack a shift of these rows are left out.
    """
    made = [
        against_best_other(rows.dropna(subset=[metric]), metric, focal, tempering, [rival])
        for rival in rivals
        for tempering in temperings
    ]
    return [each for each in made if each is not None and each.test.pairs == rows["shift"].nunique()]


def hardest(comparisons: Sequence[Comparison]) -> Comparison | None:
    """The comparison that is the worst for the method: by a ratio where lower is better, or a difference."""
    return max(comparisons, key=_loss, default=None)


def _loss(comparison: Comparison) -> float:
    if BETTER[comparison.metric] < 0:
        return comparison.focal_mean / comparison.rival_mean
    return comparison.rival_mean - comparison.focal_mean
