from itertools import pairwise

import pytest

from equipoise.report.figures.svg import (
    Frame,
    hue,
    nice_limit,
    picture,
    point,
    shape,
    shortened,
    spread,
    text,
)
from tests.report.drawn import Parsed


def test_labels_keep_their_distance() -> None:
    moved = spread([10.0, 10.0, 11.0, 90.0], gap=16, low=5, high=95)
    assert all(after - before >= 16 for before, after in pairwise(moved))
    assert moved[0] >= 5
    assert moved[-1] <= 95
    assert spread([10.0, 50.0], gap=16, low=5, high=95) == [10.0, 50.0]


@pytest.mark.parametrize(("largest", "limit"), [(0.31, 0.4), (2.75, 3.0), (0.0, 1.0)])
def test_axes_end_above_the_largest_value(largest: float, limit: float) -> None:
    assert nice_limit(largest) == pytest.approx(limit)


def test_values_have_their_place() -> None:
    frame = Frame(left=10, top=20, width=100, height=50, x_max=4, y_max=2)
    assert frame.place((1, 0)) == (35, 70)
    assert frame.place((4, 2)) == (110, 20)


def test_a_long_label_keeps_both_ends() -> None:
    assert shortened("dec", 60) == "dec"
    short, other = (shortened(f"dec-with-a-very-long-name-{rate}", 80) for rate in ("1e-4", "1e-5"))
    assert short.startswith("dec-")
    assert short.endswith("1e-4")
    assert other != short
    assert len(short) == 12  # 80 units at 6.6 each


def test_colours_come_again_with_another_shape() -> None:
    looks = [(hue(position), shape(position)) for position in range(24)]
    assert len(set(looks)) == 24
    assert looks[0] == ("hue-0", "circle")
    assert looks[8] == ("hue-0", "square")


def test_points_are_centred_on_their_values() -> None:
    circle = Parsed(point("filled", 50, 20)).all("circle")[0]
    assert (circle["cx"], circle["cy"]) == (50, 20)
    square = Parsed(point("filled", 50, 20, "square")).all("rect")[0]
    assert (square["x"] + square["width"] / 2, square["y"] + square["height"] / 2) == (50, 20)


def test_words_are_escaped() -> None:
    drawn = picture(10, 10, '<"a" & b>', [text("name", 1, 2, "<script>", "end")])
    assert "<script>" not in drawn
    parsed = Parsed(drawn)
    assert parsed.all("svg")[0].attributes["aria-label"] == '<"a" & b>'
    assert parsed.all("title")[0].text == '<"a" & b>'
    assert parsed.all("text")[0].text == "<script>"
