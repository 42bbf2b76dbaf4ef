"""A stream over time: the share of right answers beside the confidence, for one method after the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from equipoise.research.experiment.schema import RAW, REHEARSED
from equipoise.research.report.drawing import ACCENT, INK, MUTED, OVER, UNDER, method_colour, themed
from equipoise.research.report.story import Story, Told, tell

SMOOTHED = 5
"""Batches that a point of a curve is the mean of; a curve is not smoothed across two segments."""


def over_time_figures(runs: pd.DataFrame) -> dict[str, Figure]:
    """A figure for each traced stream and seed, by its name; none where nothing is traced."""
    traced = runs[runs["trace"].notna() & runs["tempering"].isin((RAW, REHEARSED))]
    stories = {
        f"{shift}, seed {seed}": tell(rows) for (shift, seed), rows in traced.groupby(["shift", "seed"])
    }
    return {
        name: over_time_figure(story, (), 10.8, 0.9 + 1.45 * len(story.methods))
        for name, story in stories.items()
    }


@themed
def over_time_figure(
    story: Story, frames: Sequence[NDArray[np.uint8]], width: float, height: float
) -> Figure:
    """A row of example images along the time axis, and below it a panel for each method.

    In a panel the thin line is the share of right answers, the thick line the mean confidence; the gap is
    shaded by its sign. The accuracy that a method estimates for itself is a dotted line with its band.
    """
    figure = Figure(figsize=(width, height))
    count = len(story.methods)
    rows = figure.subplots(
        1 + count, 1, sharex=True, height_ratios=[0.55 if len(frames) else 0.05, *[1.0] * count]
    )
    figure.subplots_adjust(
        left=0.48 / width, right=1 - 0.2 / width, top=1 - 0.24 / height, bottom=0.44 / height, hspace=0.36
    )
    curves = [smoothed(told) for told in story.methods]
    lowest = min(float(curve[["correct", "confidence"]].to_numpy().min()) for curve in curves)
    _film(rows[0], story, frames)
    for axes, told, curve in zip(rows[1:], story.methods, curves, strict=True):
        _panel(axes, told, curve, story)
        axes.set_ylim(max(0.0, np.floor(lowest * 10) / 10 - 0.05), 1.03)
    rows[-1].set_xlabel("images of the stream, in the order in which they arrive")
    return figure


def smoothed(told: Told) -> pd.DataFrame:
    """The curves of a method: means over neighbouring batches of the same segment."""
    curves = told.batches.copy()
    for name in ("correct", "confidence"):
        grouped = told.batches.groupby("segment", sort=False)[name]
        curves[name] = grouped.transform(
            lambda values: values.rolling(SMOOTHED, center=True, min_periods=1).mean()
        )
    return curves


def _film(axes: Axes, story: Story, frames: Sequence[NDArray[np.uint8]]) -> None:
    """Example images at equal distances along the time axis, with the names of the segments above."""
    axes.set(xlim=(0, story.total), ylim=(0, 1))
    axes.axis("off")
    for place, image in enumerate(frames):
        side = axes.inset_axes((place / len(frames), 0, 1 / len(frames), 1))
        side.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        side.axis("off")
    start = 0
    for name, end in story.ends.items():
        axes.annotate(
            name,
            ((start + end) / 2, 1),
            (0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
        )
        start = end


def _panel(axes: Axes, told: Told, curve: pd.DataFrame, story: Story) -> None:
    colour = method_colour(told.method).light
    at, right, says = (curve[name].to_numpy() for name in ("image", "correct", "confidence"))
    _gap(axes, at, right, says)
    shown: dict[str, Any] = {}
    if curve["value"].notna().any():
        band = axes.fill_between(at, curve["low"], curve["high"], color=ACCENT.light, alpha=0.14, linewidth=0)
        (own,) = axes.plot(at, curve["value"], color=ACCENT.light, linewidth=1, linestyle=":")
        shown["own estimate, 90\N{NO-BREAK SPACE}% band"] = (band, own)
    (line,) = axes.plot(at, right, color=INK.light, linewidth=1.4)
    (stated,) = axes.plot(at, says, color=colour, linewidth=2)
    if told is story.plain:
        shown = {"says": stated, "is right": line}
    elif not shown:
        kinds = {"too certain": OVER, "too uncertain": UNDER}
        shown = {name: Patch(color=kind.light, alpha=0.3) for name, kind in kinds.items()}
    if shown:
        axes.legend(
            list(shown.values()), list(shown), loc="lower right", bbox_to_anchor=(1, 0.98), ncols=3,
            fontsize=8.5, handlelength=1.3, columnspacing=1.0, borderaxespad=0, labelcolor=MUTED.light,
        )  # fmt: skip
    for end in list(story.ends.values())[:-1]:
        axes.axvline(end, color=MUTED.light, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_title(told.title, color=colour, fontweight="bold", pad=4)
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlim(0, story.total)


def _gap(axes: Axes, at: NDArray[np.float64], right: NDArray[np.float64], says: NDArray[np.float64]) -> None:
    """Shade the distance of two curves by its sign."""
    for over, colour in ((True, OVER), (False, UNDER)):
        where = (says >= right) == over
        axes.fill_between(
            at, right, says, where=where, color=colour.light, alpha=0.3, linewidth=0, interpolate=True
        )
