"""The error over time: the curves counted by hand, read back from matplotlib's artists."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from equipoise.research.report import figures
from equipoise.research.report.drawing import ACCENT, MUTED, method_colour
from equipoise.research.report.figures import emphasised, error_figures, errors
from tests.research.report.written import binned, line, part


def curves(figure: Figure) -> dict[str, tuple[str, list[float]]]:
    """Colour and values of each line, by its label; lines of segments are not among them."""
    drawn = [each for each in figure.axes[0].lines if len(np.asarray(each.get_xdata())) > 2]
    return {
        str(each.get_label()): (to_hex(each.get_color()), np.asarray(each.get_ydata()).tolist())
        for each in drawn
    }


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
    (axes,) = error_figures(part(lines[:1]))["raw answers"].axes
    curve, between = axes.lines
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7])  # not mixed
    assert np.asarray(curve.get_xdata()).tolist() == pytest.approx([1 / 16, 3 / 16, 7 / 16, 13 / 16])
    assert between.get_xdata() == [0.25, 0.25]
    assert axes.get_xticks().tolist() == pytest.approx([1 / 8, 5 / 8])
    (axes,) = error_figures(part(lines))["raw answers"].axes
    curve, between = axes.lines  # of both streams: each has its segments where the mean of both has them
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert between.get_xdata() == [0.5, 0.5]


def test_a_method_that_lacks_streams_is_not_the_best_rival() -> None:
    rates = {"source": 0.5, "tent": 0.3, "poise": 0.2}
    lines = [binned(label, [rate] * 4, seed=seed) for label, rate in rates.items() for seed in (0, 1)]
    found = part([*lines, binned("eta", [0.1] * 4, seed=1)])
    drawn = curves(error_figures(found)["raw answers"])
    assert "best rival, tent, 30.0%" in drawn
    assert drawn["1 other"][0] == MUTED.light
    assert drawn["1 other"][1] == pytest.approx([0.1] * 4)


def test_a_curve_is_the_mean_of_targets_and_seeds_smoothed_within_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "SMOOTHED_IMAGES", 500)
    lines = [
        binned("tent", values, target=target, seed=seed)
        for target, seed, values in (
            ("a", 0, [0.1, 0.3, 0.9, 0.9]),
            ("b", 0, [0.3, 0.5, 0.9, 0.9]),
            ("a", 1, [0.1, 0.3, 0.5, 0.5]),
            ("b", 1, [0.3, 0.5, 0.5, 0.5]),
        )
    ]
    figure = error_figures(part(lines))["raw answers"]
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
    found = part([binned(label, [rate] * 4) for label, rate in rates.items()])
    drawn = curves(error_figures(found)["raw answers"])
    assert drawn["poise 20.0%"][0] == ACCENT.light
    assert drawn["no adaptation 50.0%"][0] == method_colour("source").light
    assert "best rival, tent, 30.0%" in drawn
    assert drawn["2 others"][0] == MUTED.light
    assert list(emphasised(found, rates)) == ["source", "tent", "poise"]


def test_a_recurring_stream_is_drawn_pass_by_pass() -> None:
    options = {"passes": 2}
    rates = [0.1, 0.3, 0.5, 0.9]
    figure = error_figures(part([binned("tent", rates, order="recurring", options=options)]))["raw answers"]
    (each,) = figure.axes[0].lines
    assert np.asarray(each.get_xdata()).tolist() == [1, 2]
    assert np.asarray(each.get_ydata()).tolist() == pytest.approx([0.2, 0.7])


def test_streams_with_other_bins_are_drawn_together() -> None:
    lines = [
        binned("tent", [0.2] * 4, target="a"),
        binned("tent", [0.4] * 2, target="b", segments=[("fog", 1), ("snow", 1)]),
    ]
    figure = error_figures(part(lines))["raw answers"]
    (each,) = figure.axes[0].lines
    assert np.asarray(each.get_ydata()).tolist() == pytest.approx([0.3, 0.3])
    assert figure.axes[0].get_xlabel() == "share of the stream"


def test_raw_and_rehearsed_answers_have_a_figure_each_and_others_none() -> None:
    lines = [binned("tent", [0.2] * 4, kind) for kind in ("none", "rehearsed", "mean")]
    assert list(error_figures(part(lines))) == ["raw answers", "rehearsed answers"]
    assert error_figures(part([line("tent")])) == {}
