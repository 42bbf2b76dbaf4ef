"""The paper's figure 1: certainty against calibration, each method raw and where a tempering takes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.report.drawing import GRID, Colour, method_colour, themed
from equipoise.report.names import short
from equipoise.report.summary import Kind, Part, Place

MARKERS = "osD^vP<>X*"
GAP = 0.085
"""Between the names of two methods, as a share of the height."""


@dataclass(frozen=True)
class Track:
    """A method in the figure: entropy and ECE raw and tempered, as far as they are known."""

    name: str
    colour: Colour
    marker: str
    raw: tuple[float, float] | None
    tempered: tuple[float, float] | None

    @property
    def ends(self) -> list[tuple[float, float]]:
        """The known points."""
        return [end for end in (self.raw, self.tempered) if end is not None]


def certainty_figures(part: Part) -> dict[str, Figure]:
    """A picture for each tempering but raw, on average over all shifts."""
    kinds = [kind for kind in part.temperings if kind != "none"] or part.temperings
    return _drawn({short(kind): _tracks(part, kind, ("average", "")) for kind in kinds})


def certainty_by_place(part: Part, tempering: str) -> dict[str, Figure]:
    """A picture for each tier, or for each domain where there are no tiers, with one tempering."""
    kind, places = part.axis
    names = {place: f"tier {place}" if kind == "tier" else place for place in places}
    return _drawn({names[place]: _tracks(part, tempering, (kind, place)) for place in places})


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending heights as near to the wanted ones as a gap between neighbours allows."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    excess = max(0.0, placed[-1] - max(1.0, (len(placed) - 1) * gap)) if placed else 0.0
    ceiling = math.inf
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at] - (excess if at == len(placed) - 1 else 0.0), ceiling)
        ceiling = placed[at] - gap
    return placed


def _tracks(part: Part, tempering: str, where: tuple[Kind, str]) -> list[Track]:
    tracks = []
    for at, name in enumerate(part.names):
        points: list[tuple[float, float] | None] = []
        for kind in ("none", tempering):
            found = part.at.get(Place(name, kind, *where))
            points.append((found.mean["entropy"], found.mean["ece"]) if found else None)
        raw, tempered = points if tempering != "none" else (points[0], None)
        if raw or tempered:
            variants = [variant for variant in part.variants if variant.name == name]
            mark = "" if all(map(part.whole, variants)) else "*"
            colour = method_colour(part.methods[name], at)
            tracks.append(Track(name + mark, colour, MARKERS[at % len(MARKERS)], raw, tempered))
    return tracks


@themed
def _drawn(panel_tracks: dict[str, list[Track]]) -> dict[str, Figure]:
    """Figures with the same axes, those of the largest values."""
    ends = [end for tracks in panel_tracks.values() for track in tracks for end in track.ends]
    found = {}
    for title, tracks in panel_tracks.items():
        if not tracks:
            continue
        figure = Figure(figsize=(3.6, max(2.7, 0.24 * len(tracks) + 0.6)))
        axes = figure.add_axes((0.14, 0.16, 0.56, 0.74))
        axes.set(xlim=(0, 1.05 * max(x for x, _ in ends)), ylim=(0, 1.05 * max(y for _, y in ends)))
        axes.set(xlabel="entropy, bits", ylabel="ECE", title=title)
        _draw(axes, tracks)
        found[title] = figure
    return found


def _draw(axes: Axes, tracks: Sequence[Track]) -> None:
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    shown = sorted(tracks, key=lambda track: track.ends[-1][1])
    heights = spread_apart([track.ends[-1][1] / top for track in shown], min(GAP, 1.4 / len(shown)))
    beside = {"transform": axes.transAxes, "clip_on": False}
    for track, height in zip(shown, heights, strict=True):
        colour, (x, y) = track.colour.light, track.ends[-1]
        axes.plot([x / right, 1.03], [y / top, height], color=GRID.light, linewidth=0.7, **beside)
        if len(track.ends) == 2:
            axes.plot(*zip(*track.ends, strict=True), color=colour, linewidth=1, alpha=0.6)
        for end in track.ends:
            fill = colour if end is track.tempered else "none"
            axes.plot(*end, track.marker, color=colour, markerfacecolor=fill, markersize=5)
        name = track.name if len(track.name) <= 20 else f"{track.name[:19]}…"
        axes.text(1.04, height, name, va="center", fontsize=8.5, color=colour, **beside)
