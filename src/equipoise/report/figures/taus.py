"""How tau is distributed over the images of a stream, and where its mean and its median lie."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from equipoise.report.figures.sections import Section
from equipoise.report.figures.streams import place_of, tau_median
from equipoise.report.figures.svg import line, path, picture, shortened, text

_BEYOND = 0.005
"""The share of all images that may lie beyond the drawn range at either side."""


@dataclass(frozen=True)
class Histogram:
    """How many images have a tau between two neighbouring edges, with the mean and the median of all."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float
    median: float


def tau_histograms(section: Section) -> list[Histogram]:
    """One for each tier, or each domain where there are no tiers; all seeds (and domains) together.

    Streams that were counted between other edges than most are left out.
    """
    lines = [line for line in section.streams if sum(line["tau_counts"]) > 0]
    common = Counter(tuple(line["tau_edges"]) for line in lines).most_common(1)
    alike = [line for line in lines if tuple(line["tau_edges"]) == common[0][0]]
    found = {place: [line for line in alike if place_of(section, line) == place] for place in section.places}
    return [
        Histogram(
            f"tier {place}" if section.tiers else place,
            common[0][0],
            tuple(map(sum, zip(*(line["tau_counts"] for line in found[place]), strict=True))),
            fmean(line["tau_mean"] for line in found[place]),
            fmean(tau_median(line) for line in found[place]),
        )
        for place in section.places
        if found[place]
    ]


@dataclass(frozen=True)
class TauAxis:
    """A horizontal axis of tau, by its logarithm where the edges grow like that."""

    left: float
    width: float
    low: float
    high: float
    logarithmic: bool

    def x(self, value: float) -> float:
        """The place of a value; values beyond an end are put at it."""
        kept = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(kept / self.low) / math.log(self.high / self.low)
        else:
            share = (kept - self.low) / (self.high - self.low)
        return self.left + self.width * share

    def marks(self) -> list[float]:
        """Round values to write below."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            step = 10 ** math.floor(math.log10(self.high - self.low))
            step = next(
                (step / part for part in (1, 2, 5) if (self.high - self.low) * part / step >= 3), step
            )
            every = [step * at for at in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in every if self.low <= value <= self.high]


def tau_axis(histograms: Sequence[Histogram], left: float, width: float) -> TauAxis:
    """The axis from the first bin with images to the last, but for a few at either end."""
    edges = histograms[0].edges
    counts = [sum(column) for column in zip(*(one.counts for one in histograms), strict=True)]
    few = _BEYOND * sum(counts)
    first, last = 0, len(counts) - 1
    while first < last and sum(counts[: first + 1]) <= few:
        first += 1
    while last > first and sum(counts[last:]) <= few:
        last -= 1
    widths = edges[1] - edges[0], edges[-1] - edges[-2]
    logarithmic = edges[first] > 0 and widths[1] > 2 * widths[0]
    return TauAxis(left, width, edges[first], edges[last + 1], logarithmic)


def tau_figure(section: Section, title: str) -> str:
    """A histogram above the other for each tier or domain, all of the same area; empty without streams."""
    histograms = tau_histograms(section)
    if not histograms:
        return ""
    axis = tau_axis(histograms, left=8, width=222)
    row, tall, top = 48.0, 30.0, 2.0
    bottom = top + row * len(histograms)
    outlines = [_outline(one, axis) for one in histograms]
    highest = max(height for outline in outlines for _, height in outline) or 1.0
    parts = [line("grid", axis.x(value), top, axis.x(value), bottom) for value in axis.marks()]
    for at, (one, outline) in enumerate(zip(histograms, outlines, strict=True)):
        base = top + row * (at + 1)
        shape = [(x, base - tall * height / highest) for x, height in outline]
        mean, median = axis.x(one.mean), axis.x(one.median)
        parts += [
            path("area", [(shape[0][0], base), *shape, (shape[-1][0], base)], closed=True),
            line("axis", axis.left, base, axis.left + axis.width, base),
            text("name", axis.left, base - row + 13, shortened(one.name, axis.width), "start"),
            f'<g class="hue-3">{line("mean", mean, base - tall, mean, base)}</g>',
            f'<g class="hue-1">{line("median", median, base - tall, median, base)}</g>',
            *_values(one, axis.left + axis.width + 10, base),
        ]
    ticks = [text("tick", axis.x(value), bottom + 14, f"{value:g}", "middle") for value in axis.marks()]
    name = "τ (logarithmic)" if axis.logarithmic else "τ"
    parts += [*ticks, text("axis-name", axis.left + axis.width / 2, bottom + 30, name, "middle")]
    told = "; ".join(f"{one.name}: mean {one.mean:.2f}, median {one.median:.2f}" for one in histograms)
    return picture(320, bottom + 36, f"{title}. Histograms of τ. {told}.", parts)


def _outline(one: Histogram, axis: TauAxis) -> list[tuple[float, float]]:
    """The steps of a histogram: places, and the share of images per unit of width."""
    total = sum(one.counts)
    steps: list[tuple[float, float]] = []
    for low, high, count in zip(one.edges, one.edges[1:], one.counts, strict=False):
        left, right = axis.x(low), axis.x(high)
        if right > left:
            height = count / total / (right - left)
            steps += [(left, height), (right, height)]
    return steps


def _values(one: Histogram, x: float, base: float) -> list[str]:
    """The two numbers beside a histogram, each with a piece of the line that marks it."""
    parts = []
    for kind, colour, value, y in (
        ("median", "hue-1", one.median, base - 4),
        ("mean", "hue-3", one.mean, base - 19),
    ):
        parts.append(f'<g class="{colour}">{line(kind, x, y - 9, x, y + 1)}</g>')
        parts.append(text("tick", x + 5, y, f"{kind} {value:.2f}", "start"))
    return parts
