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

from equipoise.bench.schema import RAW, REHEARSED, BinnedSegment, Bins
from equipoise.report.drawing import MUTED, SERIES, Colour, method_colour, panels, themed
from equipoise.report.part import Part

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


def errors(bins: Bins, points: int) -> Curve:
    """The share of wrong answers in each of so many stretches of equally many images."""
    images, correct = (np.array([0, *bins[name]], dtype=float).cumsum() for name in ("images", "correct"))
    edges = np.linspace(0, images[-1], points + 1)
    right: Curve = np.diff(np.interp(edges, images, correct)) / np.diff(edges)
    return 1 - right


def smoothed_errors(curve: Curve, segments: Sequence[BinnedSegment], window: int) -> Curve:
    """Means over so many neighbouring bins of the same segment."""
    parts, start = [], 0
    for segment in segments:
        values = pd.Series(curve[start : start + segment["bins"]])
        parts.append(values.rolling(window, center=True, min_periods=1).mean().to_numpy())
        start += segment["bins"]
    return np.concatenate(parts)


@themed
def error_figure(part: Part, rows: pd.DataFrame) -> Figure:
    """The curves of some rows, of one tempering: means over the targets and seeds."""
    passes = json.loads(part.scope.order_options or "{}").get("passes", 0)
    traces: list[Bins] = rows["bins"].tolist()
    segments = traces[0]["segments"]
    if any(each["segments"] != segments for each in traces):  # of other lengths: no places in common
        segments = [BinnedSegment(name="all", bins=min(len(each["images"]) for each in traces))]
    points = passes if passes > 1 else sum(segment["bins"] for segment in segments)
    fewest = min(sum(each["images"]) for each in traces) / points
    window = 1 if passes > 1 else math.ceil(SMOOTHED_IMAGES / max(fewest, 1))
    curves: dict[str, dict[Stream, Curve]] = {}
    for name, shift, seed, bins in zip(rows["name"], rows["shift"], rows["seed"], traces, strict=True):
        curve = errors(bins, points)
        curves.setdefault(name, {})[shift, seed] = (
            curve if passes > 1 else smoothed_errors(curve, segments, window)
        )
    figure, (axes,) = panels(10.8, 3.9)
    at = np.arange(points) + (1.0 if passes > 1 else 0.5)
    means: dict[Any, float] = (1 - rows.groupby("name", sort=False)["accuracy"].mean()).to_dict()
    _lines(axes, at, curves, means, emphasised(part, means))
    if passes > 1:
        axes.set(xlabel="pass over all domains", xlim=(1, passes))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set(xlim=(0, points))
        _name_segments(axes, segments)
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
    fixed = ("source", "poise")
    rivals = [name for name in means if part.methods[name] not in fixed]
    best = min(rivals, key=lambda name: means[name], default=None)
    found: dict[str, tuple[Colour, str]] = {}
    for name in means:
        if part.methods[name] == "source":
            found[name] = method_colour("source"), "no adaptation"
    if best is not None:
        found[best] = SERIES[1], f"best rival, {best},"
    for name in means:
        if part.methods[name] == "poise":
            found[name] = method_colour("poise"), name
    return found


def _offsets(curves: Mapping[str, Mapping[Stream, Curve]]) -> dict[Stream, float]:
    """The mean error of each target and seed over all methods: some targets are harder for all of them."""
    found: dict[Stream, list[float]] = {}
    for several in curves.values():
        for stream, curve in several.items():
            found.setdefault(stream, []).append(float(curve.mean()))
    return {stream: float(np.mean(means)) for stream, means in found.items()}


def _spread(several: Mapping[Stream, Curve]) -> Curve | None:
    """The standard deviation over seeds of the mean over targets or, of a single seed, over targets."""
    by_seed: dict[int, list[Curve]] = {}
    for (_, seed), curve in several.items():
        by_seed.setdefault(seed, []).append(curve)
    over = (
        [np.mean(each, axis=0) for each in by_seed.values()] if len(by_seed) > 1 else list(several.values())
    )
    return np.std(over, axis=0, ddof=1) if len(over) > 1 else None


def _name_segments(axes: Axes, segments: Sequence[BinnedSegment]) -> None:
    """The names of the segments below their middles, and lines between them."""
    ends = list(accumulate(segment["bins"] for segment in segments))
    if not 1 < len(segments) <= MOST_NAMES:
        axes.set_xlabel("share of the stream")
        axes.xaxis.set_major_formatter(PercentFormatter(ends[-1], decimals=0))
        return
    middles = [end - segment["bins"] / 2 for end, segment in zip(ends, segments, strict=True)]
    names = [segment["name"].replace("_", " ") for segment in segments]
    axes.set_xticks(middles, names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    for end in ends[:-1]:
        axes.axvline(end, color=MUTED.light, linewidth=0.5, linestyle=(0, (2, 3)))
