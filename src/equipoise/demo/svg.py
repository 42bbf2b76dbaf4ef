"""Hand-written SVG diagrams; colours and fonts come from the page's style sheet, by class name."""

import math
from dataclasses import dataclass
from html import escape

from equipoise.demo.results import Reliability

PALETTE_SIZE = 8


def hue(position: int) -> str:
    """The class in the style sheet, hue-0 to hue-7, of the method at a position."""
    return f"hue-{position % PALETTE_SIZE}"


@dataclass(frozen=True)
class Track:
    """One method in a scatter diagram: where it is raw, and where tempering takes it."""

    label: str
    hue: str
    raw: tuple[float, float]
    tempered: tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """Where a diagram's axes lie in its picture, and what values they span (both from 0)."""

    left: float
    top: float
    width: float
    height: float
    x_max: float
    y_max: float

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a pair of values lies."""
        return self.x(point[0]), self.y(point[1])

    def x(self, value: float) -> float:
        """The horizontal place of a value."""
        return self.left + self.width * value / self.x_max

    def y(self, value: float) -> float:
        """The vertical place of a value; larger values are higher up."""
        return self.top + self.height * (1 - value / self.y_max)


def reliability_diagram(bins: Reliability, label: str) -> str:
    """Accuracy in each bin of confidence, the gap to the confidence shaded, and how many answers it has.

    Calibrated answers have bars that end at the diagonal.
    """
    frame = Frame(left=36, top=8, width=126, height=126, x_max=1, y_max=1)
    counts_top, counts_height = 138.0, 20.0
    most = max(bins["count"], default=0)
    shapes = []
    for position, count in enumerate(bins["count"]):
        accuracy, confidence = bins["accuracy"][position], bins["confidence"][position]
        if accuracy is None or confidence is None:
            continue
        left, right = frame.x(bins["lower"][position]), frame.x(bins["upper"][position])
        gap = "over" if confidence > accuracy else "under"
        high, low = max(accuracy, confidence), min(accuracy, confidence)
        tall = counts_height * count / most
        shapes += [
            _rect("bar", left, frame.y(low), right - left, frame.y(0) - frame.y(low)),
            _rect(gap, left, frame.y(high), right - left, frame.y(low) - frame.y(high)),
            _rect("count", left, counts_top + counts_height - tall, right - left, tall),
        ]
    marks = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")]
    drawing = [
        *_grid(frame, marks, marks, x_labels_at=counts_top + counts_height + 12),
        *shapes,
        _line("diagonal", frame.x(0), frame.y(0), frame.x(1), frame.y(1)),
        _line("axis", frame.left, counts_top + counts_height, frame.x(1), counts_top + counts_height),
        _text("axis-name", frame.left + frame.width / 2, 186, "confidence", "middle"),
        _text("axis-name", 9, frame.y(0.5), "accuracy", "middle", turned=True),
    ]
    description = (
        f"Reliability diagram of {label}: accuracy in each bin of confidence, and the number of answers."
    )
    return _svg(168, 190, description, drawing)


def scatter_diagram(
    tracks: list[Track], title: str, x_name: str, y_name: str, limits: tuple[float, float]
) -> str:
    """A hollow point for each method raw, joined to a filled one for it tempered, and names at the right.

    A thin line leads from a filled point to its name; names keep their distance however close the points are.
    """
    frame = Frame(left=40, top=10, width=182, height=230, x_max=limits[0], y_max=limits[1])
    names_at = frame.left + frame.width + 18
    ordered = sorted(tracks, key=lambda track: track.tempered[1], reverse=True)
    wanted = [frame.y(track.tempered[1]) for track in ordered]
    heights = spread(wanted, gap=16, low=frame.top + 4, high=frame.y(0))
    lines, points, names = [], [], []
    for track, height in zip(ordered, heights, strict=True):
        start, end = frame.place(track.raw), frame.place(track.tempered)
        lines.append(_line("leader", *end, names_at - 3, height))
        points.append(f'<g class="{track.hue}">')
        points.append(_line("joined", *start, *end))
        points += [_circle("hollow", *start), _circle("filled", *end), "</g>"]
        names.append(_text("name", names_at, height + 4, track.label, "start"))
    drawing = [
        *_grid(frame, _marks(limits[0]), _marks(limits[1]), x_labels_at=frame.y(0) + 14),
        *lines,
        *points,
        *names,
        _text("axis-name", frame.left + frame.width / 2, frame.y(0) + 32, x_name, "middle"),
        _text("axis-name", 10, frame.top + frame.height / 2, y_name, "middle", turned=True),
    ]
    listed = ", ".join(
        f"{track.label} from {track.raw[0]:.2f} / {track.raw[1]:.3f} "
        f"to {track.tempered[0]:.2f} / {track.tempered[1]:.3f}"
        for track in tracks
    )
    return _svg(320, 278, f"{title}, {x_name} / {y_name}, raw to tempered: {listed}.", drawing)


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Move ascending places apart until neighbours are `gap` apart, as little as that takes.

    They stay within low..high if there is room for them.
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, low) if not moved else max(place, moved[-1] + gap))
    limit = high
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - gap
    return moved


def nice_limit(largest: float) -> float:
    """The end of an axis: the next of 0.1, 0.2, 0.5, 1, 2, ... steps above the largest value."""
    if largest <= 0:
        return 1.0
    step = _step(largest)
    return math.ceil(largest / step + 0.01) * step


def _step(limit: float) -> float:
    rough = limit / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((factor for factor in (1, 2, 5, 10) if factor * power >= rough), default=10)


def _marks(limit: float) -> list[tuple[float, str]]:
    step = _step(limit)
    return [(step * index, f"{step * index:.3g}") for index in range(int(limit / step + 1e-6) + 1)]


def _grid(
    frame: Frame, x_marks: list[tuple[float, str]], y_marks: list[tuple[float, str]], x_labels_at: float
) -> list[str]:
    parts = []
    for value, text in y_marks:
        parts.append(_line("grid", frame.left, frame.y(value), frame.left + frame.width, frame.y(value)))
        parts.append(_text("tick", frame.left - 5, frame.y(value) + 4, text, "end"))
    parts.append(_line("axis", frame.left, frame.y(0), frame.left + frame.width, frame.y(0)))
    parts += [_text("tick", frame.x(value), x_labels_at, text, "middle") for value, text in x_marks]
    return parts


def _svg(width: int, height: int, description: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}">'
        f"<title>{escape(description)}</title>{''.join(parts)}</svg>"
    )


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _line(name: str, x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line class="{name}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _circle(name: str, x: float, y: float) -> str:
    return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _text(name: str, x: float, y: float, text: str, anchor: str, *, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
