"""What the source model makes of the streams, put together by tier or by domain."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from statistics import fmean

from equipoise.bench.schema import StreamSummary
from equipoise.report.figures.sections import Section, Spread, spread_of
from equipoise.report.numbers.runs import ShiftKey

WANTED_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that are drawn: of those that a run wrote, the nearest to these."""


def place_of(section: Section, line: StreamSummary) -> str | None:
    """Where on the axis of the section's figures a stream is."""
    return section.place(ShiftKey(line["target"], line["tier"]))


def by_place(section: Section, value: Callable[[StreamSummary], float]) -> dict[str, Spread]:
    """A value of the streams: over the domains of each tier, or over the seeds of each domain.

    At a tier, the seeds of a domain are averaged first, so that the deviation is from domain to domain.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for line in section.streams:
        place = place_of(section, line)
        if place is not None:
            inner = line["target"] if section.tiers else str(line["seed"])
            found.setdefault(place, {}).setdefault(inner, []).append(value(line))
    return {place: spread_of([fmean(values) for values in inner.values()]) for place, inner in found.items()}


def shown_levels(levels: Sequence[float]) -> list[float]:
    """Which quantiles are drawn, ascending."""
    if not levels:
        return []
    return sorted({min(levels, key=lambda level: abs(level - wanted)) for wanted in WANTED_LEVELS})


def quantile(levels: Sequence[float], values: Sequence[float], level: float) -> float:
    """A quantile from those that were written, on a straight line between neighbours."""
    above = bisect_left(levels, level)
    if above == 0:
        return values[0]
    if above == len(levels):
        return values[-1]
    low, high = levels[above - 1], levels[above]
    share = (level - low) / (high - low)
    return values[above - 1] * (1 - share) + values[above] * share


def scaled_norm(line: StreamSummary, level: float) -> float:
    """A quantile of the logit norm over kappa, the paper's 1/gamma."""
    return quantile(line["levels"], line["norms"], level) / line["kappa"]


def tau_median(line: StreamSummary) -> float:
    """The median of tau on a stream."""
    return quantile(line["levels"], line["taus"], 0.5)
