"""The error over time: a line for each method, a few of them in colour with a band, the others in grey."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from equipoise.research.experiment.schema import RAW, REHEARSED, Bins
from equipoise.research.report.drawing import MUTED, SERIES, Colour, method_colour, panels, themed
from equipoise.research.report.part import Part
from equipoise.research.report.results import grouped

SMOOTHED_IMAGES = 100
"""Images of a stream that a point is the mean of, at least; a curve is not smoothed across segments."""
MOST_NAMES = 20
"""More segments than these are not named."""

Curve = NDArray[np.float64]
Stream = tuple[str, int]
"""A target and a seed."""


def error_figures(part: Part) -> dict[str, Figure]:
    """A figure of the raw answers and one of the rehearsed ones; none where results have no bins."""
    found = {}
    for tempering, title in ((RAW, "raw"), (REHEARSED, "rehearsed")):
        rows = part.runs[part.runs["bins"].notna() & (part.runs["tempering"] == tempering)]
        if len(rows):
            found[f"{title} answers"] = error_figure(part, rows)
    return found


def errors(images: Sequence[int], correct: Sequence[int], points: int) -> Curve:
    """The share of wrong answers in each of so many stretches of equally many images; NaN without images."""
    before, right = (np.array([0, *counts], dtype=float).cumsum() for counts in (images, correct))
    if not before[-1]:
        return np.full(points, np.nan)
    edges = np.linspace(0, before[-1], points + 1)
    shares: Curve = np.diff(np.interp(edges, before, right)) / np.diff(edges)
    return 1 - shares


class Axis:
    """The horizontal axis of several streams: shares of their images, the same segments in each.

    Streams whose segments differ have none in common: then all of a stream is one segment.
    """

    def __init__(self, traces: Sequence[Bins]) -> None:
        segments = traces[0]["segments"]
        if all(each["segments"] == segments for each in traces):
            self.names = [segment["name"].replace("_", " ") for segment in segments]
            self.bins = [segment["bins"] for segment in segments]
        else:
            self.names, self.bins = [], [min(len(each["images"]) for each in traces)]
        images = np.array([[sum(part) for part in self._of_segments(each["images"])] for each in traces])
        self.fewest = images.min(axis=0)
        """The images of each segment in the stream that has the fewest."""
        shares = (images / images.sum(axis=1, keepdims=True)).mean(axis=0)
        self.ends: Curve = shares.cumsum()
        starts, widths = self.ends - shares, shares / self.bins
        columns = zip(starts, widths, self.bins, strict=True)
        self.at: Curve = np.concatenate([s + width * (np.arange(count) + 0.5) for s, width, count in columns])
        """The middle of each point of a curve."""

    def curve(self, bins: Bins) -> Curve:
        """The errors of a stream at `at`: means of `SMOOTHED_IMAGES` images, but not across segments."""
        parts = []
        of_segments = zip(*(self._of_segments(bins[name]) for name in ("images", "correct")), strict=True)
        for (images, correct), count, fewest in zip(of_segments, self.bins, self.fewest, strict=True):
            window = math.ceil(SMOOTHED_IMAGES * count / max(int(fewest), 1))
            values = pd.Series(errors(images, correct, count))
            parts.append(values.rolling(window, center=True, min_periods=1).mean().to_numpy())
        return np.concatenate(parts)

    def _of_segments(self, values: Sequence[int]) -> list[Sequence[int]]:
        """The values of the bins of each segment."""
        if not self.names:
            return [values]
        ends = list(accumulate(self.bins))
        return [values[end - count : end] for end, count in zip(ends, self.bins, strict=True)]


@themed
def error_figure(part: Part, rows: pd.DataFrame) -> Figure:
    """The curves of some rows, of one tempering: means over the targets and seeds.

    In colour are only methods that met all of these streams: means over others are not comparable.
    """
    passes = json.loads(part.scope.order_options or "{}").get("passes", 0)
    traces: list[Bins] = rows["bins"].tolist()
    axis = Axis(traces)
    curves: dict[str, dict[Stream, Curve]] = {}
    for name, shift, seed, bins in zip(rows["name"], rows["shift"], rows["seed"], traces, strict=True):
        curves.setdefault(name, {})[shift, seed] = (
            errors(bins["images"], bins["correct"], passes) if passes > 1 else axis.curve(bins)
        )
    streams = {stream for several in curves.values() for stream in several}
    whole = rows[rows["name"].isin([name for name, several in curves.items() if several.keys() == streams])]
    means: dict[Any, float] = (1 - whole.groupby("name", sort=False)["accuracy"].mean()).to_dict()
    figure, (axes,) = panels(10.8, 3.9)
    at = np.arange(passes) + 1.0 if passes > 1 else axis.at
    _lines(axes, at, curves, means, emphasised(part, means))
    if passes > 1:
        axes.set(xlabel="pass over all domains", xlim=(1, passes))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set(xlim=(0, 1))
        _name_segments(axes, axis)
    low, high = axes.get_ylim()
    axes.set(ylabel="error", ylim=(max(low, 0), min(high, 1.02)))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _lines(
    axes: Axes,
    at: Curve,
    curves: Mapping[str, Mapping[Stream, Curve]],
    means: Mapping[str, float],
    chosen: Mapping[str, tuple[Colour, str]],
) -> None:
    grey = [name for name in curves if name not in chosen]
    for place, name in enumerate(grey):
        label = f"{len(grey)} other{'s' * (len(grey) > 1)}" if not place else None
        mean = np.mean(list(curves[name].values()), axis=0)
        axes.plot(at, mean, color=MUTED.light, alpha=0.35, linewidth=0.9, label=label)
    offsets = _offsets(curves)
    for name, (colour, words) in chosen.items():
        mean = np.mean(list(curves[name].values()), axis=0)
        spread = _spread({stream: curve - offsets[stream] for stream, curve in curves[name].items()})
        if spread is not None:
            low, high = np.clip([mean - spread, mean + spread], 0, 1)
            axes.fill_between(at, low, high, color=colour.light, alpha=0.14, linewidth=0)
        axes.plot(at, mean, color=colour.light, linewidth=2, label=f"{words} {means[name]:.1%}")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(labels),
        fontsize=8.5, handlelength=1.3, columnspacing=1.2, borderaxespad=0, labelcolor=MUTED.light,
    )  # fmt: skip


def emphasised(part: Part, means: Mapping[str, float]) -> dict[str, tuple[Colour, str]]:
    """The methods in colour, with words for the legend: no adaptation, the best rival, and poise last."""
    of = {method: [name for name in means if part.methods[name] == method] for method in ("source", "poise")}
    rivals = [name for name in means if part.methods[name] not in of]
    found = {name: (method_colour("source"), "no adaptation") for name in of["source"]}
    if rivals:
        best = min(rivals, key=lambda name: means[name])
        found[best] = SERIES[1], f"best rival, {best},"
    return found | {name: (method_colour("poise"), name) for name in of["poise"]}


def _offsets(curves: Mapping[str, Mapping[Stream, Curve]]) -> dict[Stream, float]:
    """The mean error of each target and seed over all methods: some targets are harder for all of them."""
    every = [each for several in curves.values() for each in several.items()]
    return {
        stream: float(np.mean([float(np.nanmean(curve)) for _, curve in several]))
        for stream, several in grouped(every, lambda each: each[0]).items()
    }


def _spread(several: Mapping[Stream, Curve]) -> Curve | None:
    """The standard deviation over seeds of the mean over targets or, of a single seed, over targets."""
    by_seed = grouped(several.items(), lambda each: each[0][1])
    means = [np.mean([curve for _, curve in each], axis=0) for each in by_seed.values()]
    over = means if len(means) > 1 else list(several.values())
    return np.std(over, axis=0, ddof=1) if len(over) > 1 else None


def _name_segments(axes: Axes, axis: Axis) -> None:
    """The names of the segments below their middles, and lines between them."""
    if not 1 < len(axis.names) <= MOST_NAMES:
        axes.set_xlabel("share of the stream")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        return
    middles = (axis.ends + np.array([0, *axis.ends[:-1]])) / 2
    axes.set_xticks(middles, axis.names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    for end in axis.ends[:-1]:
        axes.axvline(end, color=MUTED.light, linewidth=0.5, linestyle=(0, (2, 3)))
