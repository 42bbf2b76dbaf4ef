"""The paper's figure 3: the certainty regulariser against one temperature fitted on the source."""

from collections.abc import Mapping
from statistics import fmean

from equipoise.bench.schema import Protocol
from equipoise.report.figures.charts import Series, line_chart, row_chart
from equipoise.report.figures.sections import Section, Spread, VariantResults, spread_of
from equipoise.report.figures.streams import by_place, tau_median
from equipoise.report.figures.svg import Shape
from equipoise.report.numbers.runs import MethodVariant, Metric

KINDS: dict[str, tuple[str, str, Shape]] = {
    "mean": ("mean of τ", "hue-3", "circle"),
    "median": ("median of τ", "hue-1", "diamond"),
    "fixed": ("fixed τ", "hue-0", "square"),
}
"""The temperings that are compared: what they are called, their colour and their shape."""
PREFERRED = ("dec", "source")


def ablated(section: Section, protocol: Protocol) -> dict[str, VariantResults]:
    """The groups that are compared, by tempering: those of dec, else of source; empty if neither has two.

    One of the two at least is the fixed temperature: without it there is nothing to compare with.
    """
    groups = section.groups.get(protocol, {})
    for label in PREFERRED:
        found = {
            kind: groups[MethodVariant(label, kind)] for kind in KINDS if MethodVariant(label, kind) in groups
        }
        if "fixed" in found and len(found) > 1:
            return found
    return {}


def metric_by_place(section: Section, group: VariantResults, metric: Metric) -> dict[str, Spread]:
    """A metric over the domains of each tier, or over the seeds of each domain."""
    found: dict[str, list[float]] = {}
    for shift, seeds in group.runs.items():
        place = section.place(shift)
        if place is not None:
            values = [scores[metric] for scores in seeds.values()]
            found.setdefault(place, []).extend([fmean(values)] if section.tiers else values)
    return {place: spread_of(values) for place, values in found.items()}


def tau_by_place(section: Section) -> dict[str, dict[str, Spread]]:
    """The computed temperatures by tempering, then by tier or domain; empty without streams."""
    if not section.streams:
        return {}
    found = {
        "mean": by_place(section, lambda stream: stream["tau_mean"]),
        "median": by_place(section, tau_median),
        "fixed": by_place(section, lambda stream: stream["fixed_tau"]),
    }
    return {kind: values for kind, values in found.items() if values}


def ablation_figures(section: Section, protocol: Protocol) -> list[str]:
    """ECE, NLL and tau, each over the tiers or the domains; empty if there is nothing to compare."""
    found = ablated(section, protocol)
    if not found:
        return []
    metrics: tuple[tuple[Metric, str], ...] = ("ece", "ECE"), ("nll", "NLL (nats)")
    drawn = [
        _chart(
            section, {kind: metric_by_place(section, group, metric) for kind, group in found.items()}, name
        )
        for metric, name in metrics
    ]
    taus = {kind: values for kind, values in tau_by_place(section).items() if kind in found}
    return [*drawn, _chart(section, taus, "temperature τ")] if taus else drawn


def _chart(section: Section, values: Mapping[str, Mapping[str, Spread]], name: str) -> str:
    series = [
        Series(KINDS[kind][0], KINDS[kind][1], by_place, KINDS[kind][2], filled=kind != "fixed")
        for kind, by_place in values.items()
    ]
    where = "tier" if section.tiers else "domain"
    title = f"{name} by {where}"
    if section.tiers:
        return line_chart(series, section.places, "tier", name, title)
    return row_chart(series, section.places, name, title)
