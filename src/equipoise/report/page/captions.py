"""What to see in a figure, decided by the numbers that are drawn, and what it is made from."""

from html import escape
from itertools import pairwise

from equipoise.bench.schema import Protocol
from equipoise.report.figures.ablation import ablated, metric_by_place
from equipoise.report.figures.norms import norm_quantiles
from equipoise.report.figures.sections import Section, VariantResults
from equipoise.report.figures.taus import tau_histograms
from equipoise.report.numbers.paper import counted
from equipoise.report.numbers.runs import Metric
from equipoise.report.page.words import DECIMALS, SHORT


def extent(section: Section) -> str:
    """What numbers are averages over."""
    domains = counted(len(section.targets), "domain")
    tiers = f" at {counted(len(section.tiers), 'tier')}" if section.tiers else ""
    return f"{domains}{tiers} and {counted(len(section.seeds), 'seed')}"


def ablation_caption(section: Section, protocol: Protocol) -> str:
    """At how many tiers or domains the certainty regulariser is better than a fixed temperature."""
    found = ablated(section, protocol)
    fixed = found["fixed"]
    told = [
        f"by ECE {_wins(section, one, fixed, 'ece')} and by NLL {_wins(section, one, fixed, 'nll')} for the "
        f"{SHORT[kind]}"
        for kind, one in found.items()
        if kind != "fixed"
    ]
    over, several = ("domains", section.targets) if section.tiers else ("seeds", section.seeds)
    bars = f" Bars are standard deviations over the {over}." if len(several) > 1 else ""
    where = "tiers" if section.tiers else "domains"
    return (
        f"The logits of {fixed.label}, divided by the certainty regulariser or by the one temperature that "
        f"is best on the source training images. On so many {where} the first is better: {'; '.join(told)}."
        f"{bars}"
    )


def reliability_caption(section: Section) -> str:
    """How to read the diagrams; as HTML, with the colours."""
    return (
        '<span class="swatch bar"></span> A bar is how often the answers of that confidence are right; '
        "calibrated ones end at the dashed diagonal. The gap is shaded: "
        '<span class="swatch over"></span> more certain than right, '
        '<span class="swatch under"></span> less certain than right. Below, the share of answers that '
        f"have that confidence. Across: confidence from 0 to 1. Averages over {escape(extent(section))}, "
        "each counting the same, as in the tables."
    )


def streams_caption(section: Section) -> str:
    """How norms and tau move with the shift."""
    return (
        f"{_norms_told(section)} {_taus_told(section)} κ is the median norm on the source; an image's τ is "
        f"larger the smaller its ‖z‖/κ is. From the source model's logits on {extent(section)}, whatever "
        "method adapts later."
    )


def _wins(section: Section, one: VariantResults, other: VariantResults, metric: Metric) -> str:
    """At how many places one is lower than the other, as written."""
    mine, theirs = (metric_by_place(section, group, metric) for group in (one, other))
    shared = [place for place in section.places if place in mine and place in theirs]
    lower = sum(round(mine[place].mean, DECIMALS) < round(theirs[place].mean, DECIMALS) for place in shared)
    return f"{lower} of {len(shared)}"


def _norms_told(section: Section) -> str:
    """How the lowest quantile moves with the tier; for domains, which is lowest."""
    quantiles = norm_quantiles(section)
    lowest = min(quantiles)
    values = {place: quantiles[lowest][place].mean for place in section.places if place in quantiles[lowest]}
    (first, start), (last, end) = next(iter(values.items())), list(values.items())[-1]
    if len(values) == 1:
        return f"The {lowest:.0%} quantile of ‖z‖/κ is {start:.2f}."
    if not section.tiers:
        low = min(values, key=lambda place: values[place])
        return (
            f"The {lowest:.0%} quantile of ‖z‖/κ is lowest on {low}, {values[low]:.2f}. A line goes from "
            f"there to the {max(quantiles):.0%} quantile, thick in the middle, with a point at the median."
        )
    numbers = [round(value, 3) for value in values.values()]
    falls = all(after < before for before, after in pairwise(numbers))
    manner = "falling at every step" if falls else "not falling at every step"
    return (
        f"The {lowest:.0%} quantile of ‖z‖/κ goes from {start:.2f} at tier {first} to {end:.2f} at tier "
        f"{last}, {manner}."
    )


def _taus_told(section: Section) -> str:
    histograms = tau_histograms(section)
    if not histograms:
        return ""
    above = sum(round(one.mean, 2) > round(one.median, 2) for one in histograms)
    noun = "tier" if section.tiers else "domain"
    return f"The mean of τ is above its median in {above} of {counted(len(histograms), noun)}."
