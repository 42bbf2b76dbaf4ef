"""The numbers that figures draw, read back from matplotlib's artists."""

from typing import Any, cast

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from equipoise.research.experiment.schema import StreamSummary
from equipoise.research.report.drawing import OVER, UNDER, palette_css, svg
from equipoise.research.report.figures import (
    ablated,
    ablation_figures,
    by_place,
    certainty_figures,
    reliability_axes,
    reliability_figures,
    scaled_norm,
    spread_apart,
    stream_figures,
    streams_of,
    tau_median,
)
from equipoise.research.report.part import parts, pooled
from tests.research.report.written import line, part, stream_line, sweep, swept


def stream(**changes: Any) -> StreamSummary:
    return cast("StreamSummary", stream_line(**changes))


def points(figure: Figure) -> set[tuple[float, float]]:
    """The places of single points."""
    drawn = [each.get_xydata() for each in figure.axes[0].lines]
    return {
        (round(float(xy[0][0]), 6), round(float(xy[0][1]), 6))
        for xy in map(np.asarray, drawn)
        if len(xy) == 1
    }


def test_certainty_has_a_picture_for_every_tempering_with_raw_and_tempered_points() -> None:
    lines = [line("tent", target=t, entropy=e, ece=c) for t, e, c in (("a", 0.5, 0.2), ("b", 0.7, 0.4))]
    lines += [
        line("tent", kind, target=t, entropy=2.0, ece=0.1)
        for kind in ("agreement", "rehearsed")
        for t in "ab"
    ]
    found = certainty_figures(part(lines))
    assert list(found) == ["agreement", "rehearsed"]
    for figure in found.values():
        assert points(figure) == {(0.6, 0.3), (2.0, 0.1)}
        assert [text.get_text() for text in figure.axes[0].texts] == ["tent"]
    by = certainty_figures(part(lines), by_place=True)
    assert list(by) == ["a, agreement", "b, agreement"]
    assert points(by["b, agreement"]) == {(0.7, 0.4), (2.0, 0.1)}


def test_an_incomplete_method_has_a_star() -> None:
    lines = [
        line("tent", "mean", target="a"),
        line("tent", "mean", target="b"),
        line("eta", "mean", target="a"),
    ]
    (figure,) = certainty_figures(part(lines)).values()
    assert {text.get_text() for text in figure.axes[0].texts} == {"tent", "eta*"}


def test_names_keep_their_distance() -> None:
    placed = spread_apart([0.1, 0.1, 0.1, 0.98, 0.99], 0.1)
    assert np.diff(placed).min() >= 0.1 - 1e-9
    assert max(placed) <= 1
    assert placed[0] == 0.1


def test_reliability_is_pooled_over_seeds_then_shifts_as_shares() -> None:
    def bins(count: float, correct: float) -> dict[str, list[float]]:
        last = {"count": count, "confidence": 0.9 * count, "correct": correct}
        return {name: [0.0] * 14 + [value] for name, value in last.items()}

    lines = [
        {**line(target="a", seed=0), "reliability": bins(10, 5)},
        {**line(target="a", seed=1), "reliability": bins(1000, 1000)},
        {**line(target="b", seed=0), "reliability": bins(100, 10)},
        {**line(target="c", seed=0), "reliability": None},
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
    several = [
        stream(target=t, tier=1, seed=s, kappa=k) for t, s, k in (("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 4.0))
    ]
    assert by_place(tiers, several, lambda each: each["kappa"])["1"] == pytest.approx((3.0, 2**0.5))
    domains = part([line(target=t) for t in "ab"])
    several = [stream(target="a", seed=seed, kappa=kappa) for seed, kappa in ((0, 1.0), (1, 3.0))]
    assert by_place(domains, several, lambda each: each["kappa"])["a"] == pytest.approx((2.0, 2**0.5))
    quantiles = stream(levels=[0.25, 0.75], norms=[5.0, 15.0], taus=[1.0, 2.0], kappa=10.0)
    assert scaled_norm(quantiles, 0.5) == pytest.approx(1.0)
    assert scaled_norm(quantiles, 0.9) == pytest.approx(1.5)
    assert tau_median(quantiles) == pytest.approx(1.5)


def test_stream_figures_have_quantiles_means_and_medians() -> None:
    several = [
        stream(target=t, levels=[0.05, 0.5, 0.95], norms=[5.0, 10.0, 20.0], taus=[1, 2, 3]) for t in "ab"
    ]
    found = stream_figures(part([line(target=t) for t in "ab"]), several)
    assert list(found) == ["norms", "tau"]
    texts = [text.get_text() for text in found["tau"].axes[0].texts]
    assert texts == ["mean 2.10", "median 2.00"] * 2
    legend = [text.get_text() for text in found["norms"].legends[0].get_texts()]
    assert legend == ["5%", "25%", "50%", "75%", "95%"]
    assert stream_figures(part([line()]), []) == {}


def test_the_ablation_compares_every_tempering_of_dec_with_the_fixed_one() -> None:
    kinds = ("none", "mean", "agreement", "rehearsed", "fixed")
    lines = [
        line("mine", kind, method="dec", target=t, ece=0.1 * at)
        for at, kind in enumerate(kinds)
        for t in "ab"
    ]
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
