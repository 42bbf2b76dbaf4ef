"""Certainty against calibration: where each method lies raw, and where tempering takes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.report.figures.svg import (
    Frame,
    Shape,
    axis_names,
    grid,
    line,
    marks,
    picture,
    point,
    shortened,
    spread,
    text,
)

Point = tuple[float, float]

_GAP = 16.0
"""Between the names of two methods."""


@dataclass(frozen=True)
class Track:
    """One method in a scatter diagram: where it is raw, and where tempering takes it, as far as is known."""

    label: str
    hue: str
    raw: Point | None
    tempered: Point | None
    shape: Shape = "circle"

    @property
    def drawn(self) -> bool:
        """Whether it has a place: at least one point, and all of them finite."""
        points = [end for end in (self.raw, self.tempered) if end is not None]
        return bool(points) and all(math.isfinite(value) for end in points for value in end)

    @property
    def end(self) -> Point:
        """The point that its name belongs to."""
        return self.tempered or self.raw or (math.nan, math.nan)


def scatter_diagram(tracks: Sequence[Track], title: str, x_name: str, y_name: str, limits: Point) -> str:
    """A hollow point for each method raw, joined to a filled one for it tempered, and names at the right.

    A thin line leads from a point to its name; names keep their distance however close the points are.
    """
    shown = sorted((track for track in tracks if track.drawn), key=lambda track: track.end[1], reverse=True)
    height = max(230.0, _GAP * len(shown))
    frame = Frame(left=40, top=10, width=182, height=height, x_max=limits[0], y_max=limits[1])
    names_at, width = frame.right + 18, 320
    wanted = [frame.y(track.end[1]) for track in shown]
    heights = spread(wanted, gap=_GAP, low=frame.top + 4, high=frame.bottom)
    lines, points, names = [], [], []
    for track, name_height in zip(shown, heights, strict=True):
        lines.append(line("leader", *frame.place(track.end), names_at - 3, name_height))
        points.append(f'<g class="{track.hue}">')
        if track.raw and track.tempered:
            points.append(line("joined", *frame.place(track.raw), *frame.place(track.tempered)))
        if track.raw:
            points.append(point("hollow", *frame.place(track.raw), track.shape))
        if track.tempered:
            points.append(point("filled", *frame.place(track.tempered), track.shape))
        points.append("</g>")
        names.append(
            text("name", names_at, name_height + 4, shortened(track.label, width - names_at), "start")
        )
    drawing = [
        *grid(frame, marks(limits[0]), marks(limits[1])),
        *lines,
        *points,
        *names,
        *axis_names(frame, x_name, y_name),
    ]
    listed = ", ".join(_told(track) for track in tracks if track.drawn)
    return picture(width, height + 48, f"{title}, {x_name} / {y_name}, raw to tempered: {listed}.", drawing)


def _told(track: Track) -> str:
    ends = [f"{end[0]:.2f} / {end[1]:.3f}" for end in (track.raw, track.tempered) if end is not None]
    return f"{track.label} from {ends[0]} to {ends[1]}" if len(ends) == 2 else f"{track.label} at {ends[0]}"
