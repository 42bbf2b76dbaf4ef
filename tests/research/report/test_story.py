"""The story of a traced run: numbers counted again by hand, from lines typed in."""

from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import DataError
from equipoise.research.report.results import read_results
from equipoise.research.report.story import (
    RECENT,
    SMOOTHED,
    Story,
    findings,
    headline,
    over_time_figure,
    over_time_figures,
    says_and_right,
    smoothed,
    story_page,
    stream_scores,
    tell,
)
from tests.research.report.written import PLAIN, POISE, SIZE, folder, line, traced_lines


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return tell(read_results(folder(tmp_path, traced_lines())).frame)


def test_the_plain_model_is_first_and_ours_last_with_its_estimates(story: Story) -> None:
    assert [told.method for told in story.methods] == ["source", "tent", "poise"]
    assert story.ends == {"calm": 80, "storm": 160}
    assert story.total == 160
    assert story.hero.batches["value"].tolist() == [0.7] * 8
    assert story.plain.batches["value"].isna().all()


def test_the_headline_is_of_the_segment_where_the_plain_model_is_right_least_often(story: Story) -> None:
    says, right = sum(PLAIN[1][4:]) / 4, sum(PLAIN[0][4:]) / 80
    ours, hits = sum(POISE[1][4:]) / 4, sum(POISE[0][4:]) / 80
    assert story.worst == "storm"
    said = [f"{100 * share:.0f}\N{NO-BREAK SPACE}%" for share in (says, right, ours, hits)]
    begin, rival, end = headline(story).split("; ")
    assert begin == f"Where drift is worst, the plain model says {said[0]} and is right {said[1]}"
    assert rival.startswith("TENT says 96\N{NO-BREAK SPACE}% and is right")
    assert end == f"equipoise says {said[2]} and is right {said[3]} of the time."


def test_findings_have_the_error_of_the_estimate(story: Story) -> None:
    recent = []
    for end in range(1, 9):
        part = POISE[0][max(0, end - RECENT) : end]
        recent.append(sum(part) / SIZE / len(part))
    off = sum(abs(0.7 - right) for right in recent) / 8
    inside = sum(0.55 <= right <= 0.97 for right in recent) / 8
    last = findings(story)[-1]
    assert f"off by {off:.3f} on average" in last
    assert f"{100 * inside:.0f}\N{NO-BREAK SPACE}% of the time" in last


def test_curves_are_means_of_neighbours_in_the_same_segment(story: Story) -> None:
    curve = smoothed(story.plain)["correct"].tolist()
    side = SMOOTHED // 2
    for at in range(8):
        half = range(4) if at < 4 else range(4, 8)
        near = [PLAIN[0][place] / SIZE for place in half if abs(place - at) <= side]
        assert curve[at] == pytest.approx(sum(near) / len(near))


def test_tables_have_a_row_for_each_segment_and_for_each_method(story: Story) -> None:
    table = says_and_right(story)
    assert table.index.tolist() == ["calm", "storm"]
    assert table.columns.get_level_values(0).unique().tolist() == ["Plain model", "TENT", "Equipoise"]
    assert table.loc["storm", ("TENT", "says")] == "96\N{NO-BREAK SPACE}%"
    assert stream_scores(story).loc["Equipoise", "right ↑"] == pytest.approx(sum(POISE[0]) / 160)


def test_the_page_starts_with_the_headline_and_needs_no_network(story: Story) -> None:
    page = story_page(story, [np.zeros((8, 8), dtype=np.uint8)] * 20, "facts <of> the run")
    body = page[page.index("<main>") :]
    assert body.index("<h1>") < body.index("<svg") < body.index("<table")
    assert headline(story) in page
    assert "facts &lt;of&gt; the run" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 5


def test_the_error_of_a_stream_is_the_mean_of_its_segments(story: Story) -> None:
    assert story.plain.whole["ece"] == pytest.approx(0.2)
    assert story.plain.whole["says"] == pytest.approx(sum(PLAIN[1]) / 8)


def test_every_panel_has_the_same_axes(story: Story) -> None:
    figure = over_time_figure(story, [np.zeros((8, 8), dtype=np.uint8)] * 4, 8, 5)
    _, *panels = figure.axes[:4]
    assert len({panel.get_ylim() for panel in panels}) == 1
    assert {panel.get_xlim() for panel in panels} == {(0, 160)}


def test_the_report_draws_every_traced_stream_over_time(tmp_path: Path) -> None:
    frame = read_results(folder(tmp_path, [*traced_lines(), line()])).frame
    (name, figure), *others = over_time_figures(frame).items()
    assert (name, others) == ("photo, seed 0", [])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["", "Plain model", "TENT", "Equipoise"]
    assert over_time_figures(frame[frame["trace"].isna()]) == {}


def test_without_a_trace_there_is_no_story(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="trace: true"):
        tell(read_results(folder(tmp_path, [line()])).frame)
