import math
from itertools import pairwise

import pytest

from equipoise.report.figures.scatter import Track, scatter_diagram
from tests.report.drawn import Parsed


def diagram(*tracks: Track) -> Parsed:
    return Parsed(scatter_diagram(tracks, "PACS", "entropy (bits)", "ECE", (2.0, 0.5)))


def test_a_line_goes_from_a_hollow_point_to_a_filled_one() -> None:
    drawn = scatter_diagram(
        [Track("tent", "hue-3", (0.0, 0.5), (1.0, 0.0))],
        "Held out: mnist",
        "entropy (bits)",
        "ECE",
        (2.0, 0.5),
    )
    assert '<circle class="hollow" cx="40.0" cy="10.0"' in drawn
    assert '<circle class="filled" cx="131.0" cy="240.0"' in drawn
    assert '<line class="joined" x1="40.0" y1="10.0" x2="131.0" y2="240.0"/>' in drawn
    assert "tent from 0.00 / 0.500 to 1.00 / 0.000" in drawn


def test_one_end_alone_is_drawn_alone() -> None:
    raw, tempered = (
        diagram(Track("a", "hue-0", (1, 0.25), None)),
        diagram(Track("a", "hue-0", None, (1, 0.25))),
    )
    assert [len(raw.all("circle", kind)) for kind in ("hollow", "filled")] == [1, 0]
    assert [len(tempered.all("circle", kind)) for kind in ("hollow", "filled")] == [0, 1]
    assert not raw.all("line", "joined")
    assert "a at 1.00 / 0.250" in raw.all("title")[0].text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_place(value: float) -> None:
    drawn = diagram(Track("good", "hue-0", (1, 0.1), (1, 0.2)), Track("bad", "hue-1", (1, 0.1), (value, 0.2)))
    assert len(drawn.all("circle")) == 2
    assert [name.text for name in drawn.all("text", "name")] == ["good"]


def test_names_do_not_touch_however_many_there_are() -> None:
    drawn = diagram(*(Track(f"method {index}", "hue-0", (1, 0.1), (1, 0.1)) for index in range(30)))
    heights = sorted(name["y"] for name in drawn.all("text", "name"))
    assert min(after - before for before, after in pairwise(heights)) >= 15.9
    _, _, _, height = drawn.all("svg")[0].attributes["viewbox"].split()
    assert heights[-1] < float(height)


def test_a_shape_goes_with_its_colour() -> None:
    drawn = diagram(Track("a", "hue-2", (1, 0.1), (1, 0.2), "square"))
    assert len(drawn.all("rect", "filled", within="hue-2")) == 1
