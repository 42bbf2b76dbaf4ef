"""The paper's figure 2: the norms of the source model's logits against the strength of the shift."""

from collections.abc import Mapping, Sequence

from equipoise.report.figures.charts import Reference, Series, line_chart
from equipoise.report.figures.sections import Section, Spread
from equipoise.report.figures.streams import by_place, scaled_norm, shown_levels
from equipoise.report.figures.svg import (
    Frame,
    line,
    marks,
    nice_limit,
    picture,
    point,
    row_grid,
    shortened,
    text,
)

AXIS = "quantiles of ‖z‖ / κ"

Quantiles = Mapping[float, Mapping[str, Spread]]
"""By level, then by tier or domain."""


def norm_quantiles(section: Section) -> dict[float, dict[str, Spread]]:
    """The quantiles of ‖z‖/κ at the levels that are drawn; empty without streams that have a place."""

    def at(level: float) -> dict[str, Spread]:
        return by_place(section, lambda stream: scaled_norm(stream, level))

    levels = shown_levels(section.streams[0]["levels"]) if section.streams else []
    return {level: places for level in levels if (places := at(level))}


def norms_figure(section: Section, title: str) -> str:
    """Lines over the tiers, or a row with the range for each domain; empty without streams."""
    quantiles = norm_quantiles(section)
    if not quantiles:
        return ""
    if not section.tiers:
        met = next(iter(quantiles.values()))
        return interval_chart(quantiles, [place for place in section.places if place in met], title)
    lowest, middle = min(quantiles), min(quantiles, key=lambda level: abs(level - 0.5))
    hues = {lowest: "hue-3", middle: "hue-1"}
    series = [
        Series(f"{level:.0%}", hues.get(level, "hue-0"), values, filled=level in hues)
        for level, values in quantiles.items()
    ]
    return line_chart(series, section.places, "tier", AXIS, title, Reference("source 50%", 1.0))


def interval_chart(quantiles: Quantiles, domains: Sequence[str], title: str) -> str:
    """For each domain a thin line from the lowest quantile to the highest, a thick one inside, a point."""
    levels = sorted(quantiles)
    outer, inner = (levels[0], levels[-1]), (levels[len(levels) // 4], levels[-1 - len(levels) // 4])
    middle = min(levels, key=lambda level: abs(level - 0.5))
    limit = nice_limit(max(1.0, *(quantiles[outer[1]][domain].mean for domain in domains)))
    row = 38.0
    frame = Frame(left=10, top=4, width=296, height=row * len(domains), x_max=limit, y_max=1)
    parts = row_grid(frame, marks(limit), AXIS)
    parts.append(line("diagonal", frame.x(1), frame.top, frame.x(1), frame.bottom))
    for at, domain in enumerate(domains):
        top = frame.top + row * at
        place = {level: frame.x(quantiles[level][domain].mean) for level in levels}
        y = top + 26
        parts += [
            text("name", frame.left + 4, top + 12, shortened(domain, frame.width), "start"),
            '<g class="hue-1">',
            line("range", place[outer[0]], y, place[outer[1]], y),
            line("inner", place[inner[0]], y, place[inner[1]], y),
            point("filled", place[middle], y),
            "</g>",
        ]
    told = "; ".join(
        f"{domain}: " + ", ".join(f"{level:.0%} {quantiles[level][domain].mean:.2f}" for level in levels)
        for domain in domains
    )
    return picture(320, frame.bottom + 36, f"{title}, {AXIS}: {told}.", parts)
