"""A stream over time: the share of right answers beside the confidence, for one method after the other."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equipoise.report.drawing import ACCENT, INK, MUTED, OVER, PAPER, UNDER, method_colour, themed
from equipoise.report.story import Story, Told

SMOOTHED = 5
"""Batches that a point of a curve is the mean of; a curve is not smoothed across two segments."""


@themed
def over_time_figure(
    story: Story, frames: Sequence[NDArray[np.uint8]], width: float, height: float
) -> Figure:
    """A row of example images along the time axis, and below it a panel for each method.

    In a panel the dark line is the share of right answers, the coloured line the mean confidence; the gap is
    shaded by its sign. A method that estimates its own accuracy has that as a dotted line with its band.
    """
    figure = Figure(figsize=(width, height))
    count = len(story.methods)
    rows = figure.subplots(1 + count, 1, sharex=True, height_ratios=[0.55, *[1.0] * count])
    figure.subplots_adjust(
        left=0.42 / width, right=1 - 0.08 / width, top=1 - 0.28 / height, bottom=0.42 / height, hspace=0.16
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
    total, start = story.total, 0
    axes.set(xlim=(0, total), ylim=(0, 1))
    axes.axis("off")
    for place, image in enumerate(frames):
        side = axes.inset_axes((place / len(frames), 0, 1 / len(frames), 1))
        side.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        side.axis("off")
    for name, end in story.ends.items():
        axes.text((start + end) / 2, 1.12, name, ha="center", va="bottom", fontsize=9.5, color=INK.light)
        start = end


def _panel(axes: Axes, told: Told, curve: pd.DataFrame, story: Story) -> None:
    colour = method_colour(told.method).light
    at, right, says = (curve[name].to_numpy() for name in ("image", "correct", "confidence"))
    if curve["value"].notna().any():
        low, high = curve["low"].to_numpy(), curve["high"].to_numpy()
        axes.fill_between(
            at, low, high, color=ACCENT.light, alpha=0.13, linewidth=0, label="its estimate, 90 %"
        )
    else:
        axes.fill_between(
            at,
            right,
            says,
            where=says >= right,
            color=OVER.light,
            alpha=0.28,
            linewidth=0,
            interpolate=True,
            label="more certain than right",
        )
        axes.fill_between(
            at, right, says, where=says < right, color=UNDER.light, alpha=0.28, linewidth=0, interpolate=True
        )
    axes.plot(at, right, color=INK.light, linewidth=1.5, label="is right")
    axes.plot(at, says, color=colour, linewidth=2, label="says")
    for end in list(story.ends.values())[:-1]:
        axes.axvline(end, color=MUTED.light, linewidth=0.8, linestyle=(0, (2, 3)))
    title = f"{told.name[:1].upper()}{told.name[1:]}"
    axes.text(0.006, 0.06, title, transform=axes.transAxes, fontsize=11, fontweight="bold", color=colour)
    axes.legend(
        loc="lower right",
        ncols=3,
        fontsize=8.5,
        handlelength=1.4,
        columnspacing=1.2,
        borderaxespad=0.1,
        labelcolor=MUTED.light,
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.margins(x=0)
