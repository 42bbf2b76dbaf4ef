"""The pictures of docs/streams.md's comparison: gains by setting, and the accuracy pass after pass."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from stream_cells import RAW, SOURCE, Place, Setting, at, gains, places, whole

from equipoise.report.drawing import ACCENT, INK, MUTED, SERIES, panels, themed

WIDTH = 10.0
"""Inches."""
LARGEST = 0.12
"""A gain or loss of accuracy with the darkest colour; the number is in the cell."""
DARK = 0.65
"""Cells beyond so much of `LARGEST` have light numbers."""


@themed
def gains_figure(cells: pd.DataFrame) -> Figure:
    """A cell for each method and setting: the accuracy less that of no adaptation, in points."""
    table = by_mean_gain(gains(cells))
    figure, (axes,) = panels(WIDTH, 0.27 * len(table) + 1.4)
    axes.imshow(
        table.to_numpy(), cmap=mpl.colormaps["RdBu"], norm=TwoSlopeNorm(0, -LARGEST, LARGEST), aspect="auto"
    )
    for row, column in np.ndindex(*table.shape):
        value = float(table.iloc[row, column])
        if not np.isnan(value):
            colour = "white" if abs(value) > DARK * LARGEST else "black"
            text = f"{100 * value:+.0f}".replace("+0", "0").replace("-0", "0")
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(table)), [str(name) for name in table.index])
    axes.get_yticklabels()[list(table.index).index("poise")].set(color=ACCENT.light, fontweight="bold")
    axes.set_xticks(
        range(len(table.columns)), [stream for _, stream in table.columns], rotation=45, ha="right"
    )
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _group(axes, [place for place, _ in table.columns])
    return figure


def by_mean_gain(table: pd.DataFrame) -> pd.DataFrame:
    """The methods by their mean gain over the settings, best first; those that lack settings last."""
    gaps = table.isna().any(axis=1)
    order = table.mean(axis=1).sort_values(ascending=False).index
    return table.loc[[*(name for name in order if not gaps[name]), *(name for name in order if gaps[name])]]


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
    figure, axes = panels(WIDTH, 3.0, columns=len(met))
    for axis, place in zip(axes, met, strict=True):
        _passes(axis, by_pass(cells, place))
        axis.set_title(place.short)
        axis.set_xlabel("pass")
    axes[0].set_ylabel("accuracy")
    return figure


def by_pass(cells: pd.DataFrame, place: Place) -> pd.DataFrame:
    """The mean accuracy over targets and seeds for each method (row) and pass (column)."""
    rows = whole(at(cells, Setting(place, "recurring")))
    rows = rows[rows["tempering"] == RAW]
    values = rows["accuracy_by_pass"].str.split(expand=True).astype(float)
    return values.set_axis(range(1, values.shape[1] + 1), axis=1).groupby(rows["name"]).mean()


def _passes(axis: Axes, table: pd.DataFrame) -> None:
    """Grey lines, and in colour no adaptation, poise and the methods that end highest and lowest."""
    last = table.iloc[:, -1].drop([SOURCE, "poise"], errors="ignore")
    chosen = {SOURCE: SERIES[6], "poise": ACCENT, last.idxmax(): SERIES[1], last.idxmin(): SERIES[0]}
    passes = [int(column) for column in table.columns]
    for name in table.index:
        if name not in chosen:
            axis.plot(passes, table.loc[name], color=MUTED.light, alpha=0.3, linewidth=0.8)
    for name, colour in chosen.items():
        words = "no adaptation" if name == SOURCE else str(name)
        axis.plot(passes, table.loc[name], color=colour.light, linewidth=1.8, label=words)
    axis.legend(fontsize=7.5, loc="best", handlelength=1.2)
