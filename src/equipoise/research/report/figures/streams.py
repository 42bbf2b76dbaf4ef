"""The paper's figure 2: norms of the source model's logits against the shift, and the distribution of tau."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.research.experiment.schema import StreamSummary
from equipoise.research.report.drawing import ACCENT, INK, MUTED, SERIES, Colour, panels, themed
from equipoise.research.report.part import Part
from equipoise.research.report.results import scope_of

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of the norms that are drawn."""
Points = Mapping[str, tuple[float, float]]
"""A mean and its deviation by place."""


def streams_of(part: Part, streams: Iterable[StreamSummary]) -> list[StreamSummary]:
    """The streams of a part's setting and network, of each shift and seed the last."""
    of_part = [each for each in streams if scope_of({**each, "protocol": part.scope.protocol}) == part.scope]
    met = [each for each in of_part if _place(part, each) in part.axis[1]]
    return list({(each["target"], each["tier"], each["seed"]): each for each in met}.values())


def by_place(part: Part, streams: Sequence[StreamSummary], value: Callable[[StreamSummary], float]) -> Points:
    """Mean and deviation of a value: over the domains of each tier, or over the seeds of each domain.

    At a tier, the seeds of a domain are averaged first, so that the deviation is from domain to domain.
    """
    found: dict[str, dict[object, list[float]]] = {}
    for stream in streams:
        inner = stream["target"] if part.tiers else stream["seed"]
        found.setdefault(_place(part, stream), {}).setdefault(inner, []).append(value(stream))
    means = {place: [np.mean(each) for each in inner.values()] for place, inner in found.items()}
    return {
        p: (float(np.mean(each)), float(np.std(each, ddof=1)) if each[1:] else 0.0)
        for p, each in means.items()
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
        there = [(place, *points[places[place]]) for place in range(len(places)) if places[place] in points]
        where, values, bars = np.nan_to_num(np.array(there, dtype=float).reshape(-1, 3).T)
        offset = 0.5 * (at / max(len(series) - 1, 1) - 0.5) if kind == "domain" else 0.0
        x, y, x_bars, y_bars = (
            (where, values, None, bars) if kind == "tier" else (values, where + offset, bars, None)
        )
        style = f"{marker}-" if kind == "tier" else marker
        axes.errorbar(
            x, y, y_bars, x_bars, style, color=colour.light, label=label, markersize=4.5, linewidth=1
        )
    if kind == "tier":
        axes.set(xticks=range(len(places)), xticklabels=places, xlabel="tier", ylabel=name, ylim=(0, None))
    else:
        names = [place if len(place) <= 18 else f"{place[:17]}…" for place in places]
        axes.set(yticks=range(len(places)), yticklabels=names, xlabel=name, xlim=(0, None))
        axes.set_ylim(len(places) - 0.5, -0.5)


@themed
def stream_figures(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Figure]:
    """Quantiles of ‖z‖/κ, and a histogram of tau, for each tier or domain; empty without streams."""
    if not streams:
        return {}
    norms, (axes,) = panels(4.8, 3.2 if part.tiers else 0.4 * len(part.targets) + 1.4)
    quantiles = {level: by_place(part, streams, partial(scaled_norm, level=level)) for level in LEVELS}
    looks = zip(LEVELS, SERIES, strict=False)
    place_axes(
        axes, part, "logit norm ‖z‖ / κ", {f"{level:.0%}": (c, "o", quantiles[level]) for level, c in looks}
    )
    (axes.axhline if part.tiers else axes.axvline)(1, color=INK.light, linestyle="--", linewidth=0.8)
    norms.legend(
        loc="outside lower center", ncols=len(LEVELS), fontsize=8, title="quantile", title_fontsize=8
    )
    edges = Counter(tuple(stream["tau_edges"]) for stream in streams).most_common(1)[0][0]
    alike = [
        stream for stream in streams if tuple(stream["tau_edges"]) == edges and any(stream["tau_counts"])
    ]
    return {"norms": norms, "tau": _tau_figure(part, alike, edges)} if alike else {"norms": norms}


def _tau_figure(part: Part, streams: Sequence[StreamSummary], edges: Sequence[float]) -> Figure:
    places = [place for place in part.axis[1] if any(_place(part, each) == place for each in streams)]
    figure, (axes,) = panels(4.8, 0.5 * len(places) + 0.9)
    of_place = [[each for each in streams if _place(part, each) == place] for place in places]
    shares = [np.sum([each["tau_counts"] for each in several], axis=0) for several in of_place]
    shares = [counts / counts.sum() for counts in shares]
    for base, (several, share) in enumerate(zip(reversed(of_place), reversed(shares), strict=True)):
        axes.stairs(
            base + 0.8 * share / np.max(shares),
            edges,
            baseline=base,
            fill=True,
            color=MUTED.light,
            alpha=0.45,
        )
        mean, median = np.mean([(each["tau_mean"], tau_median(each)) for each in several], axis=0)
        for height, (value, name, colour) in enumerate(
            ((mean, "mean", SERIES[0]), (median, "median", ACCENT))
        ):
            axes.plot([value, value], [base, base + 0.8], color=colour.light, linewidth=1.6)
            told, beside = f"{name} {value:.2f}", axes.get_yaxis_transform()
            axes.text(1.02, base + 0.1 + 0.4 * height, told, color=colour.light, fontsize=8, transform=beside)
    cumulative = np.cumsum(np.mean(shares, axis=0))
    low, high = np.searchsorted(cumulative, [0.005, 0.995])
    names = [f"tier {place}" if part.tiers else place for place in reversed(places)]
    axes.set(xlim=(edges[low], edges[high + 1]), ylim=(0, len(places)), xlabel="τ")
    axes.set(yticks=range(len(places)), yticklabels=names)
    return figure


def _place(part: Part, stream: StreamSummary) -> str:
    return str(stream["tier"]) if part.tiers else stream["target"]
