"""Figures of a part: the paper's (certainty, logit norms, ablation), reliability, and the error over time."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from equipoise.research.experiment.schema import RAW, REHEARSED, Bins, StreamSummary
from equipoise.research.report.part import Part, Place, Spread, pooled
from equipoise.research.report.results import Variant, grouped, scope_of
from equipoise.research.report.style import (
    ACCENT,
    GRID_LINES,
    INK,
    MUTED,
    OVER,
    SERIES,
    UNDER,
    Colour,
    method_colour,
    panels,
    themed,
)
from equipoise.research.report.table import shortened
from equipoise.research.report.tables import short

MARKERS = "osD^vP<>X*"
LOOKS = {
    "mean": (SERIES[0], "o"), "median": (SERIES[1], "D"), "sample": (SERIES[3], "^"),
    "agreement": (SERIES[4], "v"), "rehearsed": (ACCENT, "P"), "fixed": (INK, "s"),
}  # fmt: skip
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of the norms that are drawn."""
Points = Mapping[str, tuple[float, float]]
"""A mean and its deviation by place."""
SMOOTHED_IMAGES = 100
"""Images of a stream that a point is the mean of, at least; a curve is not smoothed across segments."""
MOST_NAMES = 20
"""More segments than these are not named."""
Curve = NDArray[np.float64]
TargetAndSeed = tuple[str, int]
"""A target and a seed."""


class Track(NamedTuple):
    """A method in the figure: entropy and ECE raw and tempered, as far as they are known."""

    name: str
    colour: str
    marker: str
    raw: tuple[float, float] | None
    tempered: tuple[float, float] | None

    @property
    def ends(self) -> list[tuple[float, float]]:
        """The known points."""
        return [end for end in (self.raw, self.tempered) if end is not None]


@themed
def certainty_figures(part: Part, *, by_place: bool = False) -> dict[str, Figure]:
    """A picture for each tempering on average; `by_place`, for each tier or domain with the first."""
    kinds = [kind for kind in part.temperings if kind != "none"] or part.temperings
    tracks = {short(kind): _tracks(part, kind, ("average", "")) for kind in kinds}
    if by_place:
        kind, places = part.axis
        names = {place: f"tier {place}" if kind == "tier" else place for place in places if len(places) > 1}
        tracks = {f"{n}, {short(kinds[0])}": _tracks(part, kinds[0], (kind, p)) for p, n in names.items()}
    ends = [end for several in tracks.values() for track in several for end in track.ends]
    found = {}
    for title, several in tracks.items():
        found[title] = figure = Figure(figsize=(3.6, max(2.7, 0.24 * len(several) + 0.6)))
        axes = figure.add_axes((0.19, 0.16, 0.48, 0.74))
        axes.set(xlim=(0, 1.05 * max(x for x, _ in ends) or 1), ylim=(0, 1.05 * max(y for _, y in ends) or 1))
        axes.set(xlabel="entropy, bits", ylabel="ECE", title=shortened(title, 40))
        _draw(axes, several)
    return found


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending heights as near to the wanted ones, from 0 to 1, as a gap between them allows."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    ceiling = max(1.0, gap * (len(placed) - 1))
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], ceiling)
        ceiling = placed[at] - gap
    return placed


def _tracks(part: Part, tempering: str, where: tuple[str, str]) -> list[Track]:
    tracks = []
    for at, name in enumerate(part.names):
        there = [part.at.get(Place(name, kind, *where)) for kind in ("none", tempering)]
        raw, tempered = ((each.mean["entropy"], each.mean["ece"]) if each else None for each in there)
        if raw or tempered:
            whole = all(part.whole(variant) for variant in part.variants if variant.name == name)
            colour = method_colour(part.methods[name], at).light
            shown = tempered if tempering != "none" else None
            tracks.append(
                Track(name if whole else f"{name}*", colour, MARKERS[at % len(MARKERS)], raw, shown)
            )
    return tracks


def _draw(axes: Axes, tracks: Sequence[Track]) -> None:
    """Points, and names at the right, which keep their distance however close the points are."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    shown = sorted(tracks, key=lambda track: track.ends[-1][1])
    gap = 0.085 if len(shown) < 13 else 1 / len(shown)
    heights = spread_apart([track.ends[-1][1] / top for track in shown], gap)
    for track, height in zip(shown, heights, strict=True):
        colour, (x, y) = track.colour, track.ends[-1]
        leader = [x / right, 1.03], [y / top, height]
        axes.plot(*leader, color=GRID_LINES.light, linewidth=0.7, clip_on=False, transform=axes.transAxes)
        axes.plot(*zip(*track.ends, strict=True), color=colour, linewidth=1, alpha=0.6)
        for end in track.ends:
            fill = colour if end is track.tempered else "none"
            axes.plot(*end, track.marker, color=colour, markerfacecolor=fill, markersize=5)
        name = track.name if len(track.name) <= 15 else f"{track.name[:7]}…{track.name[-7:]}"
        axes.text(1.04, height, name, va="center", fontsize=8, color=colour, transform=axes.transAxes)


def streams_of(part: Part, streams: Iterable[StreamSummary]) -> list[StreamSummary]:
    """The streams of a part's setting and network, of each shift and seed the last."""
    of_part = [each for each in streams if scope_of({**each, "protocol": part.scope.protocol}) == part.scope]
    met = [each for each in of_part if _place(part, each) in part.axis[1]]
    return list({(each["target"], each["tier"], each["seed"]): each for each in met}.values())


def by_place(part: Part, streams: Sequence[StreamSummary], value: Callable[[StreamSummary], float]) -> Points:
    """Mean and deviation of a value: over the domains of each tier, or over the seeds of each domain.

    At a tier, the seeds of a domain are averaged first, so that the deviation is from domain to domain.
    """
    means: dict[str, list[np.floating[Any]]] = {}
    for place, several in grouped(streams, partial(_place, part)).items():
        inner = grouped(several, lambda each: each["target"] if part.tiers else str(each["seed"]))
        means[place] = [np.mean([value(stream) for stream in same]) for same in inner.values()]
    return {
        place: (float(np.mean(each)), float(np.std(each, ddof=1)) if each[1:] else 0.0)
        for place, each in means.items()
    }


def scaled_norm(stream: StreamSummary, level: float) -> float:
    """A quantile of the logit norm over kappa, the paper's 1/gamma."""
    return float(np.interp(level, stream["levels"], stream["norms"])) / stream["kappa"]


def tau_median(stream: StreamSummary) -> float:
    """The median of tau on a stream."""
    return float(np.interp(0.5, stream["levels"], stream["taus"]))


def place_axes(axes: Axes, part: Part, name: str, series: Mapping[str, tuple[Colour, str, Points]]) -> None:
    """Draw series with colour and marker: lines over the tiers, or points in a row for each domain."""
    kind, places = part.axis
    for at, (label, (colour, marker, points)) in enumerate(series.items()):
        there = [(row, *points[place]) for row, place in enumerate(places) if place in points]
        where, values, bars = np.nan_to_num(np.array(there, dtype=float).reshape(-1, 3).T)
        look: dict[str, Any] = {"color": colour.light, "label": label, "markersize": 4.5, "linewidth": 1}
        if kind == "tier":
            axes.errorbar(where, values, yerr=bars, fmt=f"{marker}-", **look)
        else:
            offset = 0.5 * (at / max(len(series) - 1, 1) - 0.5)
            axes.errorbar(values, where + offset, xerr=bars, fmt=marker, **look)
    if kind == "tier":
        axes.set(xticks=range(len(places)), xticklabels=places, xlabel="tier", ylabel=name, ylim=(0, None))
    else:
        names = [shortened(place, 18) for place in places]
        axes.set(yticks=range(len(places)), yticklabels=names, xlabel=name, xlim=(0, None))
        axes.set_ylim(len(places) - 0.5, -0.5)


@themed
def stream_figures(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Figure]:
    """Quantiles of ‖z‖/κ, and a histogram of tau, for each tier or domain; empty without streams."""
    if not streams:
        return {}
    norms, (axes,) = panels(4.8, 3.2 if part.tiers else 0.4 * len(part.targets) + 1.4)
    series = {
        f"{level:.0%}": (colour, "o", by_place(part, streams, partial(scaled_norm, level=level)))
        for level, colour in zip(LEVELS, SERIES, strict=False)
    }
    place_axes(axes, part, "logit norm ‖z‖ / κ", series)
    (axes.axhline if part.tiers else axes.axvline)(1, color=INK.light, linestyle="--", linewidth=0.8)
    norms.legend(
        loc="outside lower center", ncols=len(LEVELS), fontsize=8, title="quantile", title_fontsize=8
    )
    edges = Counter(tuple(stream["tau_edges"]) for stream in streams).most_common(1)[0][0]
    alike = [each for each in streams if tuple(each["tau_edges"]) == edges and any(each["tau_counts"])]
    return {"norms": norms, "tau": _tau_figure(part, alike, edges)} if alike else {"norms": norms}


def _tau_figure(part: Part, streams: Sequence[StreamSummary], edges: Sequence[float]) -> Figure:
    of_place = grouped(streams, lambda stream: _place(part, stream))
    places = [place for place in part.axis[1] if place in of_place]
    figure, (axes,) = panels(4.8, 0.5 * len(places) + 0.9)
    counts = {place: np.sum([each["tau_counts"] for each in of_place[place]], axis=0) for place in places}
    shares = {place: each / each.sum() for place, each in counts.items()}
    for base, place in enumerate(reversed(places)):
        heights = base + 0.8 * shares[place] / np.max(list(shares.values()))
        axes.stairs(heights, edges, baseline=base, fill=True, color=MUTED.light, alpha=0.45)
        found = np.mean([(each["tau_mean"], tau_median(each)) for each in of_place[place]], axis=0)
        marks = zip(("mean", "median"), found, (SERIES[0], ACCENT), (0.1, 0.5), strict=True)
        for name, value, colour, height in marks:
            axes.plot([value, value], [base, base + 0.8], color=colour.light, linewidth=1.6)
            told, beside = f"{name} {value:.2f}", axes.get_yaxis_transform()
            axes.text(1.02, base + height, told, color=colour.light, fontsize=8, transform=beside)
    cumulative = np.cumsum(np.mean(list(shares.values()), axis=0))
    low, high = np.searchsorted(cumulative, [0.005, 0.995])
    names = [f"tier {place}" if part.tiers else place for place in reversed(places)]
    axes.set(xlim=(edges[low], edges[high + 1]), ylim=(0, len(places)), xlabel="τ")
    axes.set(yticks=range(len(places)), yticklabels=names)
    return figure


def _place(part: Part, stream: StreamSummary) -> str:
    return str(stream["tier"]) if part.tiers else stream["target"]


def ablated(part: Part) -> tuple[str, list[str]] | None:
    """The method whose temperings are compared, the paper's DEC or no adaptation, with its temperings.

    None unless one of them is the fixed temperature: without it there is nothing to compare with.
    """
    sources = [name for name in part.names if part.methods[name] == "source"]
    dec = [part.papers["DEC"].name] if "DEC" in part.papers else []
    for name in [*dec, *sources]:
        kinds = [kind for kind in part.temperings if kind != "none" and Place(name, kind) in part.at]
        if "fixed" in kinds and len(kinds) > 1:
            return name, kinds
    return None


@themed
def ablation_figures(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Figure]:
    """ECE, NLL and tau, each over the tiers or the domains; empty if there is nothing to compare."""
    found = ablated(part)
    if found is None:
        return {}
    name, kinds = found
    kind, places = part.axis
    over: Spread = "domains" if part.tiers else "seeds"
    there = {each: {p: part.at.get(Place(name, each, kind, p)) for p in places} for each in kinds}
    values: dict[str, dict[str, Points]] = {}
    for metric, title in (("ece", "ECE"), ("nll", "NLL, nats")):
        values[title] = {
            each: {p: (found.mean[metric], found.std[over][metric]) for p, found in points.items() if found}
            for each, points in there.items()
        }
    taus: dict[str, Callable[[StreamSummary], float]] = {
        "mean": lambda stream: stream["tau_mean"],
        "median": tau_median,
        "fixed": lambda stream: stream["fixed_tau"],
    }
    if streams:
        values["temperature τ"] = {e: by_place(part, streams, taus[e]) for e in kinds if e in taus}
    drawn = {}
    for title, several in values.items():
        drawn[title], (axes,) = panels(3.6, 3.0 if part.tiers else 0.42 * len(places) + 1.4)
        looks = {short(e): (*LOOKS.get(e, (SERIES[7], "X")), points) for e, points in several.items()}
        place_axes(axes, part, title, looks)
        drawn[title].legend(loc="outside lower center", ncols=3, fontsize=8)
    return drawn


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
    curves: dict[str, dict[TargetAndSeed, Curve]] = {}
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
    curves: Mapping[str, Mapping[TargetAndSeed, Curve]],
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


def _offsets(curves: Mapping[str, Mapping[TargetAndSeed, Curve]]) -> dict[TargetAndSeed, float]:
    """The mean error of each target and seed over all methods: some targets are harder for all of them."""
    every = [each for several in curves.values() for each in several.items()]
    return {
        stream: float(np.mean([float(np.nanmean(curve)) for _, curve in several]))
        for stream, several in grouped(every, lambda each: each[0]).items()
    }


def _spread(several: Mapping[TargetAndSeed, Curve]) -> Curve | None:
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
