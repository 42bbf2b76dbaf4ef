"""Hand-written SVG: shapes, axes and labels; colours and fonts come from the page's style sheet, by class.

A picture is at most about 360 units wide, so that its text can still be read at the width of a phone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

Shape = Literal["circle", "square", "diamond"]
Marks = list[tuple[float, str]]
"""The values on an axis that are written, and how."""

PALETTE_SIZE = 8
CHARACTER = 6.6
"""About how wide a character of an 11 px label is in a wide font."""


def hue(position: int) -> str:
    """The class in the style sheet, hue-0 to hue-7, of the method at a position."""
    return f"hue-{position % PALETTE_SIZE}"


def shape(position: int) -> Shape:
    """The shape of its points: when the colours are used up, they come again with another shape."""
    shapes: tuple[Shape, ...] = get_args(Shape)
    return shapes[position // PALETTE_SIZE % len(shapes)]


@dataclass(frozen=True)
class Frame:
    """Where a diagram's axes lie in its picture, and what values they span (both from 0)."""

    left: float
    top: float
    width: float
    height: float
    x_max: float
    y_max: float

    @property
    def right(self) -> float:
        """The right end of the horizontal axis."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Where the horizontal axis lies."""
        return self.top + self.height

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a pair of values lies."""
        return self.x(point[0]), self.y(point[1])

    def x(self, value: float) -> float:
        """The horizontal place of a value."""
        return self.left + self.width * value / self.x_max

    def y(self, value: float) -> float:
        """The vertical place of a value; larger values are higher up."""
        return self.top + self.height * (1 - value / self.y_max)


def picture(width: float, height: float, description: str, parts: Iterable[str]) -> str:
    """The whole SVG, with what it shows in words for those who do not see it."""
    told = escape(description)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{told}">'
        f"<title>{told}</title>{''.join(parts)}</svg>"
    )


def rect(name: str, x: float, y: float, width: float, height: float) -> str:
    """A rectangle."""
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def line(name: str, x: float, y: float, to_x: float, to_y: float) -> str:
    """A straight line."""
    return f'<line class="{name}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def path(name: str, points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Straight lines through several points."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{name}" d="M{steps}{"Z" if closed else ""}"/>'


def point(name: str, x: float, y: float, kind: Shape = "circle") -> str:
    """A point of a diagram, about 9 units across."""
    if kind == "square":
        return rect(name, x - 4, y - 4, 8, 8)
    if kind == "diamond":
        return path(name, [(x, y - 5.5), (x + 5.5, y), (x, y + 5.5), (x - 5.5, y)], closed=True)
    return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def text(name: str, x: float, y: float, words: str, anchor: str, *, turned: bool = False) -> str:
    """A text; `anchor` is "start", "middle" or "end"."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def grid(frame: Frame, x_marks: Marks, y_marks: Marks, x_labels_at: float | None = None) -> list[str]:
    """A horizontal line for each mark of the vertical axis, and the marks of both."""
    below = frame.bottom + 14 if x_labels_at is None else x_labels_at
    parts = []
    for value, words in y_marks:
        parts.append(line("grid", frame.left, frame.y(value), frame.right, frame.y(value)))
        parts.append(text("tick", frame.left - 5, frame.y(value) + 4, words, "end"))
    parts.append(line("axis", frame.left, frame.bottom, frame.right, frame.bottom))
    parts += [text("tick", frame.x(value), below, words, "middle") for value, words in x_marks]
    return parts


def axis_names(frame: Frame, x_name: str, y_name: str, x_name_at: float | None = None) -> list[str]:
    """What the axes show: below the horizontal one, and turned at the left edge."""
    below = frame.bottom + 32 if x_name_at is None else x_name_at
    return [
        text("axis-name", frame.left + frame.width / 2, below, x_name, "middle"),
        text("axis-name", 10, frame.top + frame.height / 2, y_name, "middle", turned=True),
    ]


def row_grid(frame: Frame, x_marks: Marks, x_name: str) -> list[str]:
    """The axis of a chart in rows: an upright line for each mark, the marks below, and what they show."""
    parts = [line("grid", frame.x(value), frame.top, frame.x(value), frame.bottom) for value, _ in x_marks]
    parts.append(line("axis", frame.left, frame.bottom, frame.right, frame.bottom))
    parts += [text("tick", frame.x(value), frame.bottom + 14, words, "middle") for value, words in x_marks]
    parts.append(text("axis-name", frame.left + frame.width / 2, frame.bottom + 30, x_name, "middle"))
    return parts


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
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


def shortened(words: str, room: float) -> str:
    """A label that fits into `room` units: the start and the end of it if it is too long.

    Both ends stay, since names of variants differ at the end ("dec-1e-4", "dec-1e-5").
    """
    most = max(3, int(room / CHARACTER))
    if len(words) <= most:
        return words
    end = (most - 1) // 2
    return f"{words[: most - 1 - end]}…{words[-end:]}"


def nice_limit(largest: float) -> float:
    """The end of an axis: the next of 0.1, 0.2, 0.5, 1, 2, ... steps above the largest value."""
    if largest <= 0:
        return 1.0
    step = _step(largest)
    return math.ceil(largest / step + 0.01) * step


def marks(limit: float) -> Marks:
    """About five round values from 0 to the end of an axis."""
    step = _step(limit)
    return [(step * index, f"{step * index:.3g}") for index in range(int(limit / step + 1e-6) + 1)]


def _step(limit: float) -> float:
    rough = limit / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((factor for factor in (1, 2, 5, 10) if factor * power >= rough), default=10)
