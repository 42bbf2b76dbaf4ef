"""The paper's figure 1: certainty against calibration, each method raw and where a tempering takes it."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.research.report.drawing import GRID_LINES, method_colour, themed
from equipoise.research.report.part import Part, Place
from equipoise.research.report.tables import short

MARKERS = "osD^vP<>X*"


class Track(NamedTuple):
    """A method in the figure: entropy and ECE raw and tempered, as far as they are known."""

    name: str
    colour: str
    marker: str
    raw: tuple[float, float] | None
    tempered: tuple[float, float] | None

    @property
    def ends(self) -> list[tuple[float, float]]:
        """The known points."""
        return [end for end in (self.raw, self.tempered) if end is not None]


@themed
def certainty_figures(part: Part, *, by_place: bool = False) -> dict[str, Figure]:
    """A picture for each tempering on average; `by_place`, for each tier or domain with the first."""
    kinds = [kind for kind in part.temperings if kind != "none"] or part.temperings
    tracks = {short(kind): _tracks(part, kind, ("average", "")) for kind in kinds}
    if by_place:
        kind, places = part.axis
        names = {place: f"tier {place}" if kind == "tier" else place for place in places}
        told = short(kinds[0])
        tracks = {
            f"{names[place]}, {told}": _tracks(part, kinds[0], (kind, place))
            for place in places[len(places) == 1 :]
        }
    ends = [end for several in tracks.values() for track in several for end in track.ends]
    found = {}
    for title, several in tracks.items():
        figure = Figure(figsize=(3.6, max(2.7, 0.24 * len(several) + 0.6)))
        axes = figure.add_axes((0.19, 0.16, 0.48, 0.74))
        axes.set(xlim=(0, 1.05 * max(x for x, _ in ends) or 1), ylim=(0, 1.05 * max(y for _, y in ends) or 1))
        axes.set(xlabel="entropy, bits", ylabel="ECE", title=title if len(title) < 40 else f"{title[:39]}…")
        _draw(axes, several)
        found[title] = figure
    return found


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending heights as near to the wanted ones, from 0 to 1, as a gap between them allows."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    ceiling = max(1.0, gap * (len(placed) - 1))
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], ceiling)
        ceiling = placed[at] - gap
    return placed


def _tracks(part: Part, tempering: str, where: tuple[str, str]) -> list[Track]:
    tracks = []
    for at, name in enumerate(part.names):
        points = []
        for kind in ("none", tempering):
            found = part.at.get(Place(name, kind, *where))
            points.append((found.mean["entropy"], found.mean["ece"]) if found else None)
        if any(points):
            whole = all(part.whole(variant) for variant in part.variants if variant.name == name)
            colour = method_colour(part.methods[name], at).light
            tempered = points[1] if tempering != "none" else None
            tracks.append(
                Track(name if whole else f"{name}*", colour, MARKERS[at % len(MARKERS)], points[0], tempered)
            )
    return tracks


def _draw(axes: Axes, tracks: Sequence[Track]) -> None:
    """Points, and names at the right, which keep their distance however close the points are."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    shown = sorted(tracks, key=lambda track: track.ends[-1][1])
    heights = spread_apart(
        [track.ends[-1][1] / top for track in shown], 0.085 if len(shown) < 13 else 1 / len(shown)
    )
    for track, height in zip(shown, heights, strict=True):
        colour, (x, y) = track.colour, track.ends[-1]
        leader = axes.plot(
            [x / right, 1.03], [y / top, height], color=GRID_LINES.light, linewidth=0.7, clip_on=False
        )
        leader[0].set_transform(axes.transAxes)
        axes.plot(*zip(*track.ends, strict=True), color=colour, linewidth=1, alpha=0.6)
        for end in track.ends:
            fill = colour if end is track.tempered else "none"
            axes.plot(*end, track.marker, color=colour, markerfacecolor=fill, markersize=5)
        name = track.name if len(track.name) <= 15 else f"{track.name[:7]}…{track.name[-7:]}"
        axes.text(1.04, height, name, va="center", fontsize=8, color=colour, transform=axes.transAxes)
