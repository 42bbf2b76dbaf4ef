from itertools import pairwise

import pytest

from equipoise.report.figures.charts import Reference, Series, line_chart, row_chart
from equipoise.report.figures.sections import Spread, spread_of
from tests.report.drawn import Parsed

TIERS = ("1", "2")
RISING = Series("rising", "hue-3", {"1": Spread(1.0, 0.5), "2": Spread(3.0, None)})


def test_the_deviation_is_that_of_a_sample() -> None:
    assert spread_of([1.0, 3.0]).mean == 2.0
    assert spread_of([1.0, 3.0]).std == pytest.approx(2**0.5)
    assert spread_of([4.0]) == (4.0, None)


def test_points_of_a_line_lie_at_their_values() -> None:
    drawn = Parsed(line_chart([RISING], TIERS, "tier", "ECE", "ECE by tier"))
    # The axis ends at 4: the next step above 3. The frame is 196 by 190 at (40, 10), a tier has half of it.
    first, second = drawn.all("circle", "filled", within="hue-3")
    assert (first["cx"], first["cy"]) == (40 + 196 / 4, 10 + 190 * (1 - 1 / 4))
    assert (second["cx"], second["cy"]) == (40 + 3 * 196 / 4, 10 + 190 * (1 - 3 / 4))
    assert drawn.all("path", "series")[0].attributes["d"] == "M89.0 152.5L187.0 57.5"


def test_bars_reach_a_deviation_up_and_down_where_there_is_one() -> None:
    bars = Parsed(line_chart([RISING], TIERS, "tier", "ECE", "")).all("line", "deviation")
    upright = [bar for bar in bars if bar["x1"] == bar["x2"]]
    assert len(upright) == 1
    assert [upright[0]["y1"], upright[0]["y2"]] == pytest.approx(
        [10 + 190 * (1 - 0.5 / 4), 10 + 190 * (1 - 1.5 / 4)], abs=0.06
    )


def test_a_bar_stops_at_nothing() -> None:
    wide = Series("wide", "hue-1", {"1": Spread(1.0, 5.0)})
    upright = Parsed(line_chart([wide], ("1",), "tier", "ECE", "")).all("line", "deviation")[0]
    assert upright["y1"] == 200  # the axis


def test_names_stand_at_the_end_of_their_lines_and_apart() -> None:
    several = [Series(f"line {index}", "hue-0", {"1": Spread(1.0, None)}) for index in range(4)]
    drawn = Parsed(line_chart(several, ("1",), "tier", "ECE", "", Reference("source", 1.0)))
    heights = sorted([each["y"] for each in drawn.all("text") if each["x"] == 246])
    assert len(heights) == 5
    assert min(after - before for before, after in pairwise(heights)) >= 13.9


def test_a_reference_is_a_line_across() -> None:
    drawn = Parsed(line_chart([RISING], TIERS, "tier", "norm", "", Reference("source", 2.0)))
    across = drawn.all("line", "diagonal")[0]
    assert (across["x1"], across["x2"]) == (40, 236)
    assert across["y1"] == across["y2"] == 10 + 190 / 2


def test_rows_have_a_point_for_each_series() -> None:
    other = Series("other", "hue-1", {"photo": Spread(2.0, None)}, "diamond")
    series = [Series("one", "hue-3", {"photo": Spread(1.0, 0.5), "sketch": Spread(3.0, None)}), other]
    drawn = Parsed(row_chart(series, ("photo", "sketch"), "NLL", "NLL by domain"))
    # The axis goes from 10 to 222 and from 0 to 4; a row has a name, then 13 units for each series.
    *points, key = drawn.all("circle", "filled", within="hue-3")
    assert [each["cx"] for each in points] == [10 + 212 / 4, 10 + 3 * 212 / 4]
    assert points[1]["cy"] - points[0]["cy"] == 17 + 2 * 13 + 5
    assert key["cy"] == points[0]["cy"]
    bar = drawn.all("line", "deviation")[0]
    assert (bar["x1"], bar["x2"]) == pytest.approx((10 + 212 / 8, 10 + 3 * 212 / 8), abs=0.06)
    assert len(drawn.all("path", "filled", within="hue-1")) == 2  # one value, and the key


def test_values_are_told_to_those_who_do_not_see_them() -> None:
    drawn = Parsed(line_chart([RISING], TIERS, "tier", "ECE", "ECE by tier", Reference("source", 2.0)))
    told = drawn.all("svg")[0].attributes["aria-label"]
    assert told == "ECE by tier. rising: 1 1, 2 3; source: 2."


def test_what_is_not_there_is_not_drawn() -> None:
    broken = Series("broken", "hue-0", {"1": Spread(float("inf"), None)})
    for drawn in (
        line_chart([broken, RISING], TIERS, "tier", "ECE", ""),
        row_chart([broken, RISING], (*TIERS, "3"), "ECE", ""),
    ):
        assert "nan" not in drawn
        assert "inf" not in drawn
