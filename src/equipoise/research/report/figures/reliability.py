"""Reliability diagrams: are the answers of a confidence right as often as it says?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.research.report.drawing import ACCENT, INK, MUTED, OVER, UNDER, themed
from equipoise.research.report.part import Part
from equipoise.research.report.results import Variant


def pooled(runs: pd.DataFrame) -> dict[str, list[float]] | None:
    """The bins of some rows on average, as shares: over the seeds of a shift, then over the shifts.

    However many images a shift has, it counts as much as any other. None if no row has reliability sums.
    """
    shifts: dict[str, list[Any]] = {}
    for shift, sums in zip(runs["shift"], runs["reliability"], strict=True):
        if sums is not None and sum(sums["count"]):
            part = np.array([sums["count"], sums["confidence"], sums["correct"]], dtype=float)
            shifts.setdefault(shift, []).append(part / sum(sums["count"]))
    if not shifts:
        return None
    bins = np.mean([np.mean(each, axis=0) for each in shifts.values()], axis=0)
    return dict(zip(("count", "confidence", "correct"), bins.tolist(), strict=True))


def reliability_axes(
    axes: Axes, sums: Mapping[str, Sequence[float]], ticks: Sequence[float] = (0, 1)
) -> None:
    """Draw the accuracy in each bin of confidence, the gap to the confidence in colour, and the counts below.

    `sums` has `count`, and sums of `confidence` and of hits (`correct`), for bins of equal width, or shares
    of them. Bars of calibrated answers end at the diagonal.
    """
    count, total, hits = (np.asarray(sums[name], dtype=float) for name in ("count", "confidence", "correct"))
    edges, filled = np.linspace(0, 1, len(count) + 1), np.where(count > 0, count, 1.0)
    confidence, accuracy = total / filled, hits / filled
    low, high = np.minimum(confidence, accuracy), np.maximum(confidence, accuracy)
    axes.stairs(low, edges, fill=True, color=ACCENT.light, alpha=0.45)
    for over, colour in ((True, OVER), (False, UNDER)):
        gap = np.where((confidence > accuracy) == over, high, low)
        axes.stairs(gap, edges, baseline=low, fill=True, color=colour.light, alpha=0.75)
    axes.plot([0, 1], [0, 1], "--", color=INK.light, linewidth=0.8)
    share = 0.18 * count / max(count.max(), 1e-12) - 0.22
    axes.stairs(share, edges, baseline=-0.22, fill=True, color=MUTED.light, alpha=0.6)
    axes.set(xlim=(0, 1), ylim=(-0.22, 1), xticks=ticks, yticks=ticks)
    axes.grid(visible=False)


@themed
def reliability_figures(part: Part) -> dict[Variant, Figure]:
    """A small diagram for each method and tempering; its label has confidence and accuracy in words."""
    found = {}
    for variant in part.variants:
        sums = pooled(part.of(variant))
        if sums is not None:
            found[variant] = Figure(figsize=(1.5, 1.65))
            axes = found[variant].add_axes((0.01, 0.01, 0.98, 0.98), xticks=[], yticks=[])
            reliability_axes(axes, sums, ticks=())  # they take most of the time, and there are many diagrams
            sure, right = sum(sums["confidence"]), sum(sums["correct"])
            found[variant].set_label(f"{sure:.0%} sure, {right:.0%} right")
    return found
