"""Two plain charts of means with their deviations: lines over tiers, and points in rows over domains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.report.figures.sections import Spread
from equipoise.report.figures.svg import (
    Frame,
    Shape,
    axis_names,
    grid,
    line,
    marks,
    nice_limit,
    path,
    picture,
    point,
    row_grid,
    shortened,
    spread,
    text,
)

_WIDTH = 320.0


@dataclass(frozen=True)
class Series:
    """Values at some places (tiers or domains), drawn in one colour and shape."""

    label: str
    hue: str
    values: Mapping[str, Spread]
    shape: Shape = "circle"
    filled: bool = True

    def finite(self, places: Sequence[str]) -> list[tuple[int, Spread]]:
        """The values that can be drawn, each with the position of its place."""
        return [
            (position, self.values[place])
            for position, place in enumerate(places)
            if place in self.values and math.isfinite(self.values[place].mean)
        ]


@dataclass(frozen=True)
class Reference:
    """A value that the others are compared with, as a dashed line."""

    label: str
    value: float


def line_chart(
    series: Sequence[Series],
    places: Sequence[str],
    x_name: str,
    y_name: str,
    title: str,
    reference: Reference | None = None,
) -> str:
    """A line for each series over the places, bars of a standard deviation, and names at the right."""
    limit = _limit(series, places, reference)
    frame = Frame(left=40, top=10, width=196, height=190, x_max=len(places), y_max=limit)
    shown = [(one, one.finite(places)) for one in series if one.finite(places)]
    parts = grid(frame, [(at + 0.5, place) for at, place in enumerate(places)], marks(limit))
    if reference:
        at_reference = frame.y(reference.value)
        parts.append(line("diagonal", frame.left, at_reference, frame.right, at_reference))
    ends: list[tuple[float, float, str, str]] = []
    for number, (one, values) in enumerate(shown):
        # Bars of several series at one tier stand beside each other.
        aside = 0.07 * (number - (len(shown) - 1) / 2)
        at = [(frame.x(position + 0.5 + aside), value) for position, value in values]
        parts.append(f'<g class="{one.hue}">')
        parts += [_upright(frame, x, value) for x, value in at if value.std]
        if len(at) > 1:
            parts.append(path("series", [(x, frame.y(value.mean)) for x, value in at]))
        mark = "filled" if one.filled else "hollow"
        parts += [point(mark, x, frame.y(value.mean), one.shape) for x, value in at]
        parts.append("</g>")
        ends.append((frame.y(at[-1][1].mean), at[-1][0], one.label, "name"))
    if reference:
        ends.append((frame.y(reference.value), frame.right, reference.label, "tick"))
    ends.sort(key=lambda end: end[0])
    names_at = frame.right + 10
    heights = spread([end[0] for end in ends], gap=14, low=frame.top + 4, high=frame.bottom)
    for (height, x, label, kind), name_height in zip(ends, heights, strict=True):
        if kind == "name":
            parts.append(line("leader", x + 6, height, names_at - 2, name_height))
        parts.append(text(kind, names_at, name_height + 4, shortened(label, _WIDTH - names_at), "start"))
    parts += axis_names(frame, x_name, y_name)
    return picture(_WIDTH, frame.bottom + 38, _described(title, series, places, reference), parts)


def row_chart(
    series: Sequence[Series],
    places: Sequence[str],
    x_name: str,
    title: str,
    reference: Reference | None = None,
) -> str:
    """A row for each place, with its name above and a point for each series; names beside the first row."""
    limit = _limit(series, places, reference)
    step, head = 13.0, 17.0
    row = head + step * len(series) + 5
    frame = Frame(left=10, top=4, width=212, height=row * len(places), x_max=limit, y_max=1)
    parts = row_grid(frame, marks(limit), x_name)
    if reference:
        at = frame.x(reference.value)
        parts.append(line("diagonal", at, frame.top, at, frame.bottom))
    for position, place in enumerate(places):
        top = frame.top + row * position
        parts.append(text("name", frame.left + 4, top + 12, shortened(place, frame.width), "start"))
    for number, one in enumerate(series):
        parts.append(f'<g class="{one.hue}">')
        for position, value in one.finite(places):
            y = frame.top + row * position + head + step * (number + 0.5)
            mark = "filled" if one.filled else "hollow"
            parts += [line("guide", frame.left, y, frame.x(value.mean), y)]
            if value.std:
                low, high = max(value.mean - value.std, 0.0), value.mean + value.std
                parts.append(line("deviation", frame.x(low), y, frame.x(high), y))
            parts.append(point(mark, frame.x(value.mean), y, one.shape))
        # The key stands beside the first row, each name at the height of its points.
        first, key_at = frame.top + head + step * (number + 0.5), frame.right + 12
        parts += [
            point("filled" if one.filled else "hollow", key_at, first, one.shape),
            "</g>",
            text("name", key_at + 8, first + 4, shortened(one.label, _WIDTH - key_at - 8), "start"),
        ]
    return picture(_WIDTH, frame.bottom + 36, _described(title, series, places, reference), parts)


def _limit(series: Sequence[Series], places: Sequence[str], reference: Reference | None) -> float:
    """The end of the axis: above the tallest bar."""
    tops = [value.mean + (value.std or 0.0) for one in series for _, value in one.finite(places)]
    return nice_limit(max([*tops, reference.value if reference else 0.0]))


def _upright(frame: Frame, x: float, value: Spread) -> str:
    std = value.std or 0.0
    low, high = frame.y(max(value.mean - std, 0.0)), frame.y(value.mean + std)
    ends = "".join(line("deviation", x - 3, y, x + 3, y) for y in (low, high))
    return line("deviation", x, low, x, high) + ends


def _described(
    title: str, series: Sequence[Series], places: Sequence[str], reference: Reference | None
) -> str:
    told = [
        f"{one.label}: "
        + ", ".join(f"{places[position]} {value.mean:.3g}" for position, value in one.finite(places))
        for one in series
    ]
    if reference:
        told.append(f"{reference.label}: {reference.value:.3g}")
    return f"{title}. {'; '.join(told)}."
