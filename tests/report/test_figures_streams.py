"""Figures about the source model's logits: coordinates against values worked out here."""

import math
from statistics import stdev
from typing import Any, cast

import pytest

from equipoise.bench.schema import CellResult, StreamSummary
from equipoise.report.figures.ablation import ablated, ablation_figures, metric_by_place, tau_by_place
from equipoise.report.figures.norms import norm_quantiles, norms_figure
from equipoise.report.figures.sections import Section, sections
from equipoise.report.figures.streams import quantile, shown_levels
from equipoise.report.figures.taus import tau_axis, tau_figure, tau_histograms
from equipoise.report.numbers.results import RunResults
from equipoise.report.page.captions import ablation_caption, streams_caption
from tests.report.drawn import Parsed
from tests.report.writer import line, stream_line

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def stream(
    target: str = "fog", tier: int | None = 1, seed: int = 0, scale: float = 1.0, **changes: Any
) -> StreamSummary:
    """Norms of 4, 8, 10, 12 and 16 times `scale` at the levels; kappa is 10."""
    norms = [scale * value for value in (4, 8, 10, 12, 16)]
    told = stream_line(
        target=target,
        tier=tier,
        seed=seed,
        levels=LEVELS,
        norms=norms,
        taus=[1.0, 1.5, 2.0, 3.0, 6.0],
        **changes,
    )
    return cast("StreamSummary", told)


def section(*streams: StreamSummary, lines: list[dict[str, Any]] | None = None) -> Section:
    made = RunResults(lines=tuple(cast("list[CellResult]", lines or [])), streams=streams)
    (only,) = sections(made)
    return only


@pytest.mark.parametrize(("level", "value"), [(0.0, 1.0), (0.1, 1.0), (0.3, 2.0), (0.5, 3.0), (0.9, 3.0)])
def test_quantiles_between_levels_are_on_a_straight_line(level: float, value: float) -> None:
    assert quantile([0.1, 0.5], [1.0, 3.0], level) == pytest.approx(value)


def test_of_many_levels_a_few_are_drawn() -> None:
    assert shown_levels([0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99]) == [
        0.01,
        0.2,
        0.5,
        0.7,
        0.99,
    ]
    assert shown_levels([0.5]) == [0.5]


def test_norms_are_over_kappa_with_the_deviation_from_domain_to_domain() -> None:
    seeds = [stream("fog", 1, seed, scale) for seed, scale in ((0, 1.0), (1, 0.8))]
    found = norm_quantiles(section(*seeds, stream("snow", 1, 0, 0.5), stream("fog", 2, 0, 0.25)))
    # At tier 1: fog has the mean of its two seeds, 0.9, and snow 0.5.
    assert found[0.5]["1"].mean == pytest.approx((0.9 + 0.5) / 2)
    assert found[0.5]["1"].std == pytest.approx(stdev([0.9, 0.5]))
    assert found[0.05]["1"].mean == pytest.approx(0.4 * (0.9 + 0.5) / 2)
    assert found[0.5]["2"] == (0.25, None)


def test_the_norms_of_tiers_are_lines() -> None:
    drawn = Parsed(norms_figure(section(stream(tier=1), stream(tier=2, scale=0.5)), "norms"))
    # The highest quantile is 1.6, so the axis ends at 2; the median is blue, the lowest quantile orange.
    medians = drawn.all("circle", "filled", within="hue-1")
    assert [each["cy"] for each in medians] == pytest.approx(
        [10 + 190 * (1 - 1 / 2), 10 + 190 * (1 - 0.5 / 2)], abs=0.06
    )
    lowest = drawn.all("circle", "filled", within="hue-3")
    assert [each["cy"] for each in lowest] == pytest.approx(
        [10 + 190 * (1 - 0.4 / 2), 10 + 190 * (1 - 0.2 / 2)], abs=0.06
    )
    assert drawn.all("line", "diagonal")[0]["y1"] == 10 + 190 / 2  # the source, 1
    assert [each.text for each in drawn.all("text", "name")] == ["95%", "75%", "50%", "25%", "5%"]


def test_the_norms_of_domains_are_ranges() -> None:
    drawn = Parsed(norms_figure(section(stream("fog", None), stream("snow", None, scale=0.5)), "norms"))
    # 296 units from 10, for 0 to 2.
    ranges, inner, points = drawn.all("line", "range"), drawn.all("line", "inner"), drawn.all("circle")
    assert [(each["x1"], each["x2"]) for each in ranges] == [(69.2, 246.8), (39.6, 128.4)]
    assert [(each["x1"], each["x2"]) for each in inner] == [(128.4, 187.6), (69.2, 98.8)]
    assert [each["cx"] for each in points] == [158, 84]
    assert [each.text for each in drawn.all("text", "name")] == ["fog", "snow"]


def test_what_is_said_about_the_norms_is_what_they_do() -> None:
    falling = streams_caption(section(stream(tier=1), stream(tier=2, scale=0.5)))
    assert (
        "The 5% quantile of ‖z‖/κ goes from 0.40 at tier 1 to 0.20 at tier 2, falling at every step."
        in falling
    )
    assert "not falling at every step" in streams_caption(section(stream(tier=1, scale=0.5), stream(tier=2)))
    assert "lowest on snow, 0.20" in streams_caption(
        section(stream("fog", None), stream("snow", None, scale=0.5))
    )


def test_the_taus_of_all_domains_and_seeds_are_counted_together() -> None:
    told: dict[str, Any] = {"tau_edges": [0.0, 1.0, 2.0], "tau_counts": [1, 3], "tau_mean": 2.0}
    found = tau_histograms(
        section(stream("fog", 1, **told), stream("snow", 1, **told | {"tau_counts": [2, 4], "tau_mean": 3.0}))
    )
    assert [(one.name, one.counts, one.mean, one.median) for one in found] == [("tier 1", (3, 7), 2.5, 2.0)]


def test_streams_with_other_edges_than_most_are_left_out() -> None:
    streams = [stream("fog", None, seed, tau_edges=[0.0, 1.0, 2.0], tau_counts=[1, 1]) for seed in (0, 1)]
    found = tau_histograms(
        section(*streams, stream("snow", None, tau_edges=[0.0, 5.0, 9.0], tau_counts=[9, 9]))
    )
    assert [one.name for one in found] == ["fog"]


def test_a_histogram_is_as_high_as_it_has_images_for_its_width() -> None:
    drawn = Parsed(
        tau_figure(section(stream(tau_edges=[0, 1, 2, 3, 4], tau_counts=[1, 4, 2, 1], tau_mean=2.5)), "tau")
    )
    # 222 units from 8 for tau from 0 to 4; the highest bin is 30 units tall, its row ends at 50.
    quarter = 222 / 4
    steps = [(8, 1), (8 + quarter, 1), (8 + quarter, 4), (8 + 2 * quarter, 4), (8 + 2 * quarter, 2)]
    shape = "L".join(f"{x:.1f} {50 - 30 * count / 4:.1f}" for x, count in steps)
    assert drawn.all("path", "area")[0].attributes["d"].startswith(f"M8.0 50.0L{shape}L")
    mean, median = (
        drawn.all("line", "mean", within="hue-3")[0],
        drawn.all("line", "median", within="hue-1")[0],
    )
    assert mean["x1"] == pytest.approx(8 + 222 * 2.5 / 4, abs=0.06)
    assert median["x1"] == pytest.approx(8 + 222 * 2.0 / 4, abs=0.06)
    assert {each.text for each in drawn.all("text") if "me" in each.text} == {"mean 2.50", "median 2.00"}


def test_wide_bins_are_lower_for_as_many_images() -> None:
    drawn = Parsed(tau_figure(section(stream(tau_edges=[0, 1, 3], tau_counts=[5, 5])), "tau"))
    third = 222 / 3
    steps = [(8, 30), (8 + third, 30), (8 + third, 15), (230, 15)]
    shape = "L".join(f"{x:.1f} {50 - height:.1f}" for x, height in steps)
    assert drawn.all("path", "area")[0].attributes["d"] == f"M8.0 50.0L{shape}L230.0 50.0Z"


def test_edges_that_grow_have_a_logarithmic_axis() -> None:
    edges = [1.0, 2.0, 4.0, 8.0]
    scale = tau_axis(tau_histograms(section(stream(tau_edges=edges, tau_counts=[1, 1, 1]))), left=0, width=90)
    assert scale.logarithmic
    assert [scale.x(edge) for edge in edges] == pytest.approx([0, 30, 60, 90])
    assert scale.marks() == [1, 2, 5]
    assert scale.x(99) == 90  # beyond the end


def test_the_axis_leaves_out_bins_without_images_and_a_few() -> None:
    one = section(stream(tau_edges=list(range(8)), tau_counts=[0, 0, 500, 500, 500, 1, 0]))
    scale = tau_axis(tau_histograms(one), left=0, width=100)
    assert (scale.low, scale.high) == (2, 5)
    assert not scale.logarithmic


def test_no_image_is_no_histogram() -> None:
    assert tau_figure(section(stream(tau_counts=[0, 0], tau_edges=[0, 1, 2])), "tau") == ""
    assert norms_figure(section(lines=[line()]), "norms") == ""


def test_streams_that_cannot_be_drawn_are_left_out() -> None:
    broken = [stream(kappa=0.0), stream(seed=1, tau_edges=[1.0])]
    assert section(*broken, lines=[line()]).streams == ()


def ablation_lines(label: str = "dec", tiers: tuple[int | None, ...] = (1, 2)) -> list[dict[str, Any]]:
    """Mean tempering has the lower ECE at tier 1 only, the median everywhere."""
    values = {"mean": (0.1, 0.4), "median": (0.05, 0.05), "fixed": (0.2, 0.3)}
    return [
        line(
            label, kind, target=target, tier=tier, ece=ece + (0.02 if target == "snow" else 0.0), nll=10 * ece
        )
        for kind, several in values.items()
        for tier, ece in zip(tiers, several, strict=False)
        for target in ("fog", "snow")
    ]


def test_the_ablation_compares_means_over_domains() -> None:
    one = section(lines=ablation_lines())
    found = metric_by_place(one, ablated(one, "online")["mean"], "ece")
    assert found["1"].mean == pytest.approx(0.11)
    assert found["1"].std == pytest.approx(stdev([0.1, 0.12]))
    assert found["2"].mean == pytest.approx(0.41)


def test_the_ablation_takes_the_mean_over_seeds_before_the_deviation_over_domains() -> None:
    again = line("dec", "mean", target="fog", tier=1, seed=1, ece=0.3)  # fog has 0.1 with seed 0, snow 0.12
    one = section(lines=[*ablation_lines(), again])
    found = metric_by_place(one, ablated(one, "online")["mean"], "ece")
    assert found["1"].mean == pytest.approx((0.2 + 0.12) / 2)
    assert found["1"].std == pytest.approx(stdev([0.2, 0.12]))


def test_the_ablation_draws_ece_and_nll_and_tau() -> None:
    streams = [stream(target, tier, tau_mean=2.0 + tier) for target in ("fog", "snow") for tier in (1, 2)]
    ece, nll, tau = map(Parsed, ablation_figures(section(*streams, lines=ablation_lines()), "online"))
    # ECE: the highest bar is 0.41 and its deviation, so the axis ends at 0.6.
    assert [each["cy"] for each in ece.all("circle", "filled", within="hue-3")] == pytest.approx(
        [10 + 190 * (1 - 0.11 / 0.6), 10 + 190 * (1 - 0.41 / 0.6)], abs=0.06
    )
    assert (
        len(ece.all("rect", "hollow", within="hue-0")) == len(nll.all("rect", "hollow", within="hue-0")) == 2
    )
    assert "mean of τ: 1 3, 2 4" in tau.all("title")[0].text
    assert "fixed τ: 1 1.4, 2 1.4" in tau.all("title")[0].text


def test_the_ablation_says_how_often_which_is_better() -> None:
    told = ablation_caption(section(lines=ablation_lines()), "online")
    assert "by ECE 1 of 2 and by NLL 1 of 2 for the mean of τ" in told
    assert "by ECE 2 of 2 and by NLL 2 of 2 for the median of τ" in told


def test_without_dec_the_ablation_is_of_the_source_and_without_both_there_is_none() -> None:
    assert ablated(section(lines=ablation_lines("source")), "online")["mean"].label == "source"
    both = [*ablation_lines("source"), *ablation_lines("dec")]
    assert ablated(section(lines=both), "online")["mean"].label == "dec"
    assert not ablation_figures(section(lines=ablation_lines("tent")), "online")
    only_fixed = [each for each in ablation_lines() if each["cell"]["tempering"] == "fixed"]
    assert not ablation_figures(section(lines=only_fixed), "online")
    without_fixed = [each for each in ablation_lines() if each["cell"]["tempering"] != "fixed"]
    assert not ablation_figures(section(lines=without_fixed), "online")


def test_without_tiers_the_ablation_is_by_domain_with_the_deviation_over_seeds() -> None:
    lines = [
        line("dec", kind, target="fog", seed=seed, ece=0.1 + 0.1 * seed)
        for kind in ("mean", "fixed")
        for seed in (0, 1)
    ]
    one = section(stream("fog", None, 0, tau_mean=2.0), stream("fog", None, 1, tau_mean=4.0), lines=lines)
    found = metric_by_place(one, ablated(one, "online")["mean"], "ece")
    assert found["fog"].mean == pytest.approx(0.15)
    assert found["fog"].std == pytest.approx(math.sqrt(0.005))
    assert tau_by_place(one)["mean"]["fog"].mean == 3.0
    assert tau_by_place(one)["mean"]["fog"].std == pytest.approx(math.sqrt(2))
    assert len(ablation_figures(one, "online")) == 3
