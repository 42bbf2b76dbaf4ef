"""The paper's figure 2: norms of the source model's logits against the shift, and the distribution of tau."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from equipoise.bench.schema import StreamSummary
from equipoise.report.drawing import ACCENT, INK, MUTED, SERIES, panels, themed
from equipoise.report.figures.by_place import Series, by_place_axes
from equipoise.report.results import setting_of
from equipoise.report.summary import Part

WANTED_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that are drawn: of those that a run wrote, the nearest to these."""


def streams_of(part: Part, streams: Iterable[StreamSummary]) -> list[StreamSummary]:
    """The streams of a part's setting and network, of each shift and seed the last."""
    found = {}
    for stream in streams:
        if (setting_of(stream), stream["backbone"]) == (part.scope.setting, part.scope.backbone):
            found[stream["target"], stream["tier"], stream["seed"]] = stream
    return list(found.values())


def place_of(part: Part, stream: StreamSummary) -> str:
    """The place of a stream on the axis of figures: its tier, or its domain."""
    return str(stream["tier"]) if part.tiers else stream["target"]


def by_place(
    part: Part, streams: Sequence[StreamSummary], value: Callable[[StreamSummary], float]
) -> dict[str, tuple[float, float]]:
    """Mean and deviation of a value: over the domains of each tier, or over the seeds of each domain.

    At a tier, the seeds of a domain are averaged first, so that the deviation is from domain to domain.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for stream in streams:
        inner = stream["target"] if part.tiers else str(stream["seed"])
        found.setdefault(place_of(part, stream), {}).setdefault(inner, []).append(value(stream))
    averages = {place: [float(np.mean(each)) for each in inner.values()] for place, inner in found.items()}
    return {
        place: (float(np.mean(each)), float(np.std(each, ddof=1)) if len(each) > 1 else 0.0)
        for place, each in averages.items()
    }


def scaled_norm(stream: StreamSummary, level: float) -> float:
    """A quantile of the logit norm over kappa, the paper's 1/gamma."""
    return float(np.interp(level, stream["levels"], stream["norms"])) / stream["kappa"]


def tau_median(stream: StreamSummary) -> float:
    """The median of tau on a stream."""
    return float(np.interp(0.5, stream["levels"], stream["taus"]))


def shown_levels(levels: Sequence[float]) -> list[float]:
    """The quantiles that are drawn, ascending."""
    return sorted({min(levels, key=lambda level: abs(level - wanted)) for wanted in WANTED_LEVELS})


@themed
def norms_figure(part: Part, streams: Sequence[StreamSummary]) -> Figure:
    """Quantiles of ‖z‖/κ: lines over the tiers, or a range for each domain."""
    levels = shown_levels(streams[0]["levels"])
    kind, places = part.axis
    found = {level: by_place(part, streams, partial(scaled_norm, level=level)) for level in levels}
    places = [place for place in places if place in found[levels[0]]]
    figure, (axes,) = panels(4.8, 3.0 if kind == "tier" else 0.34 * len(places) + 1.1)
    name = "logit norm ‖z‖ / κ"
    if kind == "tier":
        series = {
            f"{level:.0%} quantile": Series(SERIES[at], "o", {p: (v, 0.0) for p, (v, _) in found[level].items()})
            for at, level in enumerate(levels)
        }
        by_place_axes(axes, series, places, kind, name)
        axes.legend(fontsize=8, ncols=2)
        axes.axhline(1, color=INK.light, linestyle="--", linewidth=0.8)
    else:
        for at, place in enumerate(places):
            values = [found[level][place][0] for level in levels]
            axes.plot([values[0], values[-1]], [at, at], color=ACCENT.light, linewidth=1)
            inner = values[len(values) // 4], values[-1 - len(values) // 4]
            axes.plot(inner, [at, at], color=ACCENT.light, linewidth=4, alpha=0.5)
            axes.plot(values[len(values) // 2], at, "o", color=ACCENT.light, markersize=5)
        axes.axvline(1, color=INK.light, linestyle="--", linewidth=0.8)
        by_place_axes(axes, {}, places, kind, name)
    return figure


@themed
def tau_figure(part: Part, streams: Sequence[StreamSummary]) -> Figure:
    """A histogram of tau above the other for each place, with its mean and its median."""
    edges = Counter(tuple(stream["tau_edges"]) for stream in streams).most_common(1)[0][0]
    alike = [stream for stream in streams if tuple(stream["tau_edges"]) == edges and sum(stream["tau_counts"])]
    kind, places = part.axis
    groups = {place: [each for each in alike if place_of(part, each) == place] for place in places}
    groups = {place: each for place, each in groups.items() if each}
    figure, (axes,) = panels(4.8, 0.5 * len(groups) + 0.9)
    counts = {p: np.sum([each["tau_counts"] for each in several], axis=0) for p, several in groups.items()}
    tallest = max((float((each / each.sum()).max()) for each in counts.values()), default=1.0)
    for at, (place, several) in enumerate(groups.items()):
        heights = 0.8 * counts[place] / counts[place].sum() / tallest
        axes.stairs(len(groups) - at - 1 + heights, edges, baseline=len(groups) - at - 1, fill=True, color=MUTED.light, alpha=0.45)  # fmt: skip
        mean = float(np.mean([each["tau_mean"] for each in several]))
        median = float(np.mean([tau_median(each) for each in several]))
        for value, colour in ((mean, SERIES[0]), (median, ACCENT)):
            axes.plot([value, value], [len(groups) - at - 1, len(groups) - at - 0.2], color=colour.light, linewidth=1.6)
        axes.text(1.02, len(groups) - at - 0.9, f"mean {mean:.2f}", color=SERIES[0].light, fontsize=8, transform=axes.get_yaxis_transform())  # fmt: skip
        axes.text(1.02, len(groups) - at - 0.5, f"median {median:.2f}", color=ACCENT.light, fontsize=8, transform=axes.get_yaxis_transform())  # fmt: skip
    total = np.sum(list(counts.values()), axis=0)
    inside = np.flatnonzero((np.cumsum(total) > 0.005 * total.sum()) & (np.cumsum(total[::-1])[::-1] > 0.005 * total.sum()))  # fmt: skip
    axes.set(xlim=(edges[inside[0]], edges[inside[-1] + 1]), ylim=(0, len(groups)), xlabel="τ")
    names = [f"tier {place}" if kind == "tier" else place for place in groups]
    axes.set(yticks=np.arange(len(groups))[::-1], yticklabels=names)
    axes.tick_params(axis="y", length=0)
    return figure
