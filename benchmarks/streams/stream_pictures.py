"""The pictures of docs/streams.md's comparison: gains by setting, and the accuracy pass after pass."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.streams.stream_cells import SOURCE, Place, Setting, at, by_mean, by_pass, gains, places
from equipoise.research.report.drawing import ACCENT, INK, MUTED, SERIES, panels, themed

WIDTH = 10.0
"""Inches."""
LARGEST = 0.12
"""A gain or loss of accuracy with the darkest colour; the number is in the cell."""
DARK = 0.65
"""Cells beyond so much of `LARGEST` have light numbers."""


@themed
def gains_figure(cells: pd.DataFrame) -> Figure:
    """A cell for each method and setting: the accuracy less that of no adaptation, in points."""
    table = gains(cells)
    methods = [name for name in by_mean(table) if name != SOURCE]
    figure, (axes,) = panels(WIDTH, 0.27 * len(methods) + 1.4)
    values = np.array([[by_name.get(name, np.nan) for by_name in table.values()] for name in methods])
    axes.imshow(values, cmap=mpl.colormaps["RdBu"], norm=TwoSlopeNorm(0, -LARGEST, LARGEST), aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        colour = "white" if abs(value) > DARK * LARGEST else "black"
        axes.text(column, row, points(value), ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(methods)), methods)
    axes.get_yticklabels()[methods.index("poise")].set(color=ACCENT.light, fontweight="bold")
    axes.set_xticks(range(len(table)), [setting.stream for setting in table], rotation=45, ha="right")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _group(axes, [setting.place for setting in table])
    return figure


def points(gain: float) -> str:
    """A gain of accuracy in points, with its sign."""
    whole = round(100 * gain)
    return f"{whole:+d}" if whole else "0"


def _group(axes: Axes, columns: list[Place]) -> None:
    """The name of each place above its columns, and lines between places."""
    for place in dict.fromkeys(columns):
        first, count = columns.index(place), columns.count(place)
        middle = first + (count - 1) / 2
        axes.text(middle, -0.9, place.short, ha="center", fontsize=9.5, color=INK.light)
        if first:
            axes.axvline(first - 0.5, color=INK.light, linewidth=1.2)


@themed
def passes_figure(cells: pd.DataFrame) -> Figure:
    """A panel for each place: the accuracy of raw answers in each pass of the recurring stream."""
    met = [place for place in places(cells) if len(at(cells, Setting(place, "recurring")))]
    figure, axes = panels(WIDTH, 3.3, columns=len(met))
    for axis, place in zip(axes, met, strict=True):
        _passes(axis, by_pass(cells, place))
        axis.set_title(place.short)
        axis.set_xlabel("pass")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("accuracy")
    return figure


def _passes(axis: Axes, accuracies: dict[str, list[float]]) -> None:
    """Grey lines, and in colour no adaptation, poise and the methods that end highest and lowest."""
    last = {name: values[-1] for name, values in accuracies.items() if name not in (SOURCE, "poise")}
    ends = max(last, key=last.__getitem__), min(last, key=last.__getitem__)
    chosen = {SOURCE: SERIES[6], "poise": ACCENT, ends[0]: SERIES[1], ends[1]: SERIES[0]}
    for name, values in accuracies.items():
        if name not in chosen:
            axis.plot(range(1, len(values) + 1), values, color=MUTED.light, alpha=0.3, linewidth=0.8)
    for name, colour in chosen.items():
        values, words = accuracies[name], "no adaptation" if name == SOURCE else name
        axis.plot(range(1, len(values) + 1), values, color=colour.light, linewidth=1.8, label=words)
    axis.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, handlelength=1.2)
