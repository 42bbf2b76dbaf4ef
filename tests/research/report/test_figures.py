"""The numbers that figures draw, counted by hand and read back from matplotlib's artists."""

from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from equipoise.research.experiment.schema import StreamSummary
from equipoise.research.report import figures
from equipoise.research.report.figures import (
    ablated,
    ablation_figures,
    by_place,
    certainty_figures,
    emphasised,
    error_figures,
    errors,
    reliability_axes,
    reliability_figures,
    scaled_norm,
    spread_apart,
    stream_figures,
    streams_of,
    tau_median,
)
from equipoise.research.report.part import parts, pooled
from equipoise.research.report.style import ACCENT, MUTED, OVER, UNDER, method_colour, palette_css, svg
from tests.research.report.written import Line, binned, last_bin, line, part, stream_line, sweep, swept


def stream(**changes: Any) -> StreamSummary:
    return cast("StreamSummary", stream_line(**changes))


def points(figure: Figure) -> set[tuple[float, ...]]:
    """The places of single points."""
    drawn = [np.asarray(each.get_xydata()).round(6).tolist() for each in figure.axes[0].lines]
    return {tuple(xy[0]) for xy in drawn if len(xy) == 1}


def test_certainty_has_a_picture_for_every_tempering_with_raw_and_tempered_points() -> None:
    lines = [line("tent", target=t, entropy=e, ece=c) for t, e, c in (("a", 0.5, 0.2), ("b", 0.7, 0.4))]
    divided = product(("agreement", "rehearsed"), "ab")
    lines += [line("tent", kind, target=target, entropy=2.0, ece=0.1) for kind, target in divided]
    found = certainty_figures(part(lines))
    assert list(found) == ["agreement", "rehearsed"]
    for figure in found.values():
        assert points(figure) == {(0.6, 0.3), (2.0, 0.1)}
        assert [text.get_text() for text in figure.axes[0].texts] == ["tent"]
    by = certainty_figures(part(lines), by_place=True)
    assert list(by) == ["a, agreement", "b, agreement"]
    assert points(by["b, agreement"]) == {(0.7, 0.4), (2.0, 0.1)}


def test_an_incomplete_method_has_a_star() -> None:
    there = ("tent", "a"), ("tent", "b"), ("eta", "a")
    lines = [line(name, "mean", target=target) for name, target in there]
    (figure,) = certainty_figures(part(lines)).values()
    assert {text.get_text() for text in figure.axes[0].texts} == {"tent", "eta*"}


def test_names_keep_their_distance() -> None:
    placed = spread_apart([0.1, 0.1, 0.1, 0.98, 0.99], 0.1)
    assert np.diff(placed).min() >= 0.1 - 1e-9
    assert max(placed) <= 1
    assert placed[0] == 0.1


def test_reliability_is_pooled_over_seeds_then_shifts_as_shares() -> None:
    lines = [
        line(target="a", seed=0, reliability=last_bin(10, 9, 5)),
        line(target="a", seed=1, reliability=last_bin(1000, 900, 1000)),
        line(target="b", seed=0, reliability=last_bin(100, 90, 10)),
        line(target="c", seed=0, reliability=None),
    ]
    found = pooled(part(lines).runs)
    assert found is not None
    assert found["count"][-1] == pytest.approx(1)
    assert found["confidence"][-1] == pytest.approx(0.9)
    assert found["correct"][-1] == pytest.approx(((0.5 + 1.0) / 2 + 0.1) / 2)
    assert pooled(part(lines[3:]).runs) is None
    (figure,) = reliability_figures(part(lines)).values()
    assert figure.get_label() == "90% sure, 42% right"


def test_reliability_bars_end_at_accuracy_and_gaps_at_confidence() -> None:
    axes = Figure().add_subplot()
    reliability_axes(axes, {"count": [0, 4, 10], "confidence": [0, 2.0, 9.0], "correct": [0, 3, 5]})
    low, over, under, count = (cast("Any", patch).get_data() for patch in axes.patches)
    assert low.values.tolist() == pytest.approx([0, 0.5, 0.5])
    assert low.edges.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert over.values.tolist() == pytest.approx([0, 0.5, 0.9])  # sure .9, right .5
    assert under.values.tolist() == pytest.approx([0, 0.75, 0.5])  # sure .5, right .75
    assert count.values.tolist() == pytest.approx([-0.22, -0.22 + 0.18 * 0.4, -0.04])
    colours = [to_hex(patch.get_facecolor()) for patch in axes.patches[1:3]]
    assert colours == [OVER.light, UNDER.light]


def test_streams_are_those_of_the_part_and_the_last_counts() -> None:
    one = part([line()])
    several = [stream(kappa=5.0), stream(kappa=6.0), stream(backbone="other"), stream(limit=5)]
    assert [each["kappa"] for each in streams_of(one, several)] == [6.0]
    assert streams_of(one, [stream(target="a domain without results")]) == []


def test_values_by_place() -> None:
    tiers = part([line(target=t, tier=tier) for t in "ab" for tier in (1, 2)])
    there = ("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 4.0)
    several = [stream(target=target, tier=1, seed=seed, kappa=kappa) for target, seed, kappa in there]
    assert by_place(tiers, several, lambda each: each["kappa"])["1"] == pytest.approx((3.0, 2**0.5))
    domains = part([line(target=t) for t in "ab"])
    several = [stream(target="a", seed=seed, kappa=kappa) for _, seed, kappa in there[:2]]
    assert by_place(domains, several, lambda each: each["kappa"])["a"] == pytest.approx((2.0, 2**0.5))
    quantiles = stream(levels=[0.25, 0.75], norms=[5.0, 15.0], taus=[1.0, 2.0], kappa=10.0)
    assert scaled_norm(quantiles, 0.5) == pytest.approx(1.0)
    assert scaled_norm(quantiles, 0.9) == pytest.approx(1.5)
    assert tau_median(quantiles) == pytest.approx(1.5)


def test_stream_figures_have_quantiles_means_and_medians() -> None:
    quantiles: Line = {"levels": [0.05, 0.5, 0.95], "norms": [5.0, 10.0, 20.0], "taus": [1, 2, 3]}
    several = [stream(target=target, **quantiles) for target in "ab"]
    found = stream_figures(part([line(target=t) for t in "ab"]), several)
    assert list(found) == ["norms", "tau"]
    texts = [text.get_text() for text in found["tau"].axes[0].texts]
    assert texts == ["mean 2.10", "median 2.00"] * 2
    legend = [text.get_text() for text in found["norms"].legends[0].get_texts()]
    assert legend == ["5%", "25%", "50%", "75%", "95%"]
    assert stream_figures(part([line()]), []) == {}


def test_the_ablation_compares_every_tempering_of_dec_with_the_fixed_one() -> None:
    kinds = ("none", "mean", "agreement", "rehearsed", "fixed")
    lines = [line("mine", kind, method="dec", target=target) for kind, target in product(kinds, "ab")]
    assert ablated(part(lines)) == ("mine", ["mean", "agreement", "rehearsed", "fixed"])
    found = ablation_figures(part(lines), [stream(target="a")])
    assert list(found) == ["ECE", "NLL, nats", "temperature τ"]
    legend = [text.get_text() for text in found["ECE"].legends[0].get_texts()]
    assert legend == ["mean of τ", "agreement", "rehearsed", "fixed τ"]
    assert ablated(part([each for each in lines if each["cell"]["tempering"] != "fixed"])) is None
    source = [line("source", kind) for kind in ("mean", "fixed")]
    assert ablated(part(source)) == ("source", ["mean", "fixed"])


def test_svg_has_variables_for_colours_and_a_description() -> None:
    (figure, *_) = certainty_figures(part([line("tent"), line("tent", "mean")])).values()
    text = svg(figure, 'says "what"')
    assert 'aria-label="says &quot;what&quot;"' in text
    assert "var(--series-violet)" in text
    assert "#7048e8" not in text
    assert "prefers-color-scheme: dark" in palette_css()


def test_tiers_have_lines() -> None:
    lines, streams = sweep("tiny-imagenet-c", "net", ("fog", "snow"), tiers=(1, 2, 3), seeds=(0,))
    (one, *_) = parts(swept((lines, streams)))
    for figure in (*stream_figures(one, streams).values(), *ablation_figures(one, streams).values()):
        assert svg(figure, "a figure").startswith("<svg")
    assert list(certainty_figures(one, by_place=True)) == [f"tier {tier}, mean of τ" for tier in (1, 2, 3)]


def raw(lines: Sequence[Line]) -> Figure:
    """The error over time of raw answers."""
    return error_figures(part(lines))["raw answers"]


def xy(drawn: Line2D) -> list[list[float]]:
    found: list[list[float]] = np.asarray(drawn.get_xydata()).T.tolist()
    return found


def curves(figure: Figure) -> dict[str, tuple[str, list[float]]]:
    """Colour and values of each line, by its label; lines of segments are not among them."""
    drawn = [each for each in figure.axes[0].lines if len(xy(each)[0]) > 2]
    return {str(each.get_label()): (to_hex(each.get_color()), xy(each)[1]) for each in drawn}


def test_errors_are_regrouped_by_images() -> None:
    images, correct = [100] * 4, [90, 70, 50, 30]
    assert errors(images, correct, 4).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert errors(images, correct, 2).tolist() == pytest.approx([0.2, 0.6])
    images, correct = [100, 0, 0, 300], [50, 0, 0, 300]  # bins of images of no class alone
    assert errors(images, correct, 4).tolist() == pytest.approx([0.5, 0, 0, 0])
    assert np.isnan(errors([0, 0], [0, 0], 2)).all()


def test_segments_are_as_wide_as_they_have_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SMOOTHED_IMAGES", 1)
    lines = [binned("tent", [0.1, 0.3, 0.5, 0.7], target=target) for target in ("a", "b")]
    lines[0]["bins"] |= {"images": [100, 100, 300, 300], "correct": [90, 70, 150, 90]}
    lines[1]["bins"] |= {"images": [300, 300, 100, 100], "correct": [270, 210, 50, 30]}
    (axes,) = raw(lines[:1]).axes
    curve, between = axes.lines
    assert xy(curve)[1] == pytest.approx([0.1, 0.3, 0.5, 0.7])  # not mixed
    assert xy(curve)[0] == pytest.approx([1 / 16, 3 / 16, 7 / 16, 13 / 16])
    assert between.get_xdata() == [0.25, 0.25]
    assert axes.get_xticks().tolist() == pytest.approx([1 / 8, 5 / 8])
    curve, between = raw(lines).axes[0].lines  # each has its segments where the mean of both has them
    assert xy(curve)[1] == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert between.get_xdata() == [0.5, 0.5]


def test_a_curve_is_the_mean_of_targets_and_seeds_smoothed_within_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "SMOOTHED_IMAGES", 500)
    fog, snow = {"a": [0.1, 0.3], "b": [0.3, 0.5]}, {0: [0.9, 0.9], 1: [0.5, 0.5]}
    places = product("ab", (0, 1))
    figure = raw([binned("tent", fog[name] + snow[seed], target=name, seed=seed) for name, seed in places])
    ((_, drawn),) = curves(figure).values()
    assert drawn == pytest.approx([0.3, 0.3, 0.7, 0.7])
    (band,) = figure.axes[0].collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    # Over the seeds, without the harder seed 0 (by 0.2): ±0.1 in the fog and in the snow, times sqrt(2).
    assert heights.max() == pytest.approx(0.7 + 0.1 * 2**0.5, abs=1e-6)
    assert heights.min() == pytest.approx(0.3 - 0.1 * 2**0.5, abs=1e-6)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["fog", "snow"]


def test_poise_no_adaptation_and_the_best_rival_are_in_colour() -> None:
    rates = {"source": 0.5, "tent": 0.3, "eta": 0.4, "norm": 0.45, "poise": 0.2}
    lines = [binned(label, [rate] * 4) for label, rate in rates.items()]
    drawn = curves(raw(lines))
    assert drawn["poise 20.0%"][0] == ACCENT.light
    assert drawn["no adaptation 50.0%"][0] == method_colour("source").light
    assert "best rival, tent, 30.0%" in drawn
    assert drawn["2 others"][0] == MUTED.light
    assert list(emphasised(part(lines), rates)) == ["source", "tent", "poise"]


def test_a_method_that_lacks_streams_is_not_the_best_rival() -> None:
    rates = product({"source": 0.5, "tent": 0.3, "poise": 0.2}.items(), (0, 1))
    lines = [binned(label, [rate] * 4, seed=seed) for (label, rate), seed in rates]
    drawn = curves(raw([*lines, binned("eta", [0.1] * 4, seed=1)]))
    assert "best rival, tent, 30.0%" in drawn
    assert drawn["1 other"][0] == MUTED.light
    assert drawn["1 other"][1] == pytest.approx([0.1] * 4)


def test_a_recurring_stream_is_drawn_pass_by_pass() -> None:
    recurring: Line = {"order": "recurring", "options": {"passes": 2}}
    (drawn,) = raw([binned("tent", [0.1, 0.3, 0.5, 0.9], **recurring)]).axes[0].lines
    assert xy(drawn) == [[1, 2], pytest.approx([0.2, 0.7])]


def test_streams_with_other_bins_are_drawn_together() -> None:
    other = binned("tent", [0.4] * 2, target="b", segments=[("fog", 1), ("snow", 1)])
    (axes,) = raw([binned("tent", [0.2] * 4, target="a"), other]).axes
    assert xy(axes.lines[0])[1] == pytest.approx([0.3, 0.3])
    assert (len(axes.lines), axes.get_xlabel()) == (1, "share of the stream")


def test_raw_and_rehearsed_answers_have_a_figure_each_and_others_none() -> None:
    lines = [binned("tent", [0.2] * 4, kind) for kind in ("none", "rehearsed", "mean")]
    assert list(error_figures(part(lines))) == ["raw answers", "rehearsed answers"]
    assert error_figures(part([line("tent")])) == {}
