"""Scores of a stream: whole, at the best temperature, by batches, segments and bins; counted by hand."""

import math
from pathlib import Path

import pytest
import torch

from equipoise.errors import DataError, ModelError
from equipoise.metrics import expected_calibration_error
from equipoise.research.data import Images, Shift, register_data_set
from equipoise.research.experiment import scores
from equipoise.research.experiment.schema import EstimatedAccuracy
from equipoise.research.experiment.scores import bin_stream, oracle, score, stream_estimate, trace_stream
from equipoise.streams import Segment

from .toy import ToyDataSet, go, lines, toy_images, toy_recipe


def test_answers_that_are_not_numbers_are_refused_and_not_left_out() -> None:
    logits = torch.eye(4)
    logits[2] = torch.nan
    with pytest.raises(ModelError, match="got 1 of 4 that are not"):
        score(logits, torch.arange(4))


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_the_oracle_is_the_temperature_with_the_least_nll(factor: float) -> None:
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(4000, 5, generator=draw) * 2
    labels = torch.multinomial(honest.softmax(1), 1, generator=draw).squeeze(1)
    found = oracle(honest * factor, labels)
    grid = [factor * math.exp(step / 200) for step in range(-60, 61)]
    losses = [
        -float((honest * factor / t).double().log_softmax(1)[torch.arange(4000), labels].mean()) for t in grid
    ]
    assert found["temperature"] == pytest.approx(grid[losses.index(min(losses))], rel=0.006)
    assert found["nll"] == pytest.approx(min(losses), abs=1e-5)
    divided = honest.double() * factor / found["temperature"]
    assert found["ece"] == pytest.approx(float(expected_calibration_error(logits=divided, target=labels)))


def test_the_oracle_of_answers_that_are_all_right_stays_in_its_range() -> None:
    found = oracle(torch.eye(4) * 9, torch.arange(4))
    assert 0.05 <= found["temperature"] <= 1
    assert found["nll"] < 1e-6


def guess(value: float, off: float = 0.1) -> EstimatedAccuracy:
    return EstimatedAccuracy(value=value, low=value - off, high=value + off)


def answers(classes: list[int], batch: int) -> list[torch.Tensor]:
    """Batches of answers that are 0.8 sure of these of two classes."""
    logits = torch.full((len(classes), 2), 0.2).log()
    logits[range(len(classes)), classes] = torch.tensor(0.8).log()
    return list(logits.split(batch))


def test_estimates_are_held_against_the_recent_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "RECENT_IMAGES", 4)
    given = answers([1, 1, 1, 0, 0, 0], 2)  # recent accuracies: 1, 3/4, 1/4
    found = stream_estimate(given, torch.ones(6, dtype=torch.long), [guess(0.95), guess(0.5), guess(0.3)])
    assert found is not None
    assert found["covered"] == pytest.approx(2 / 3)
    assert found["value"] == pytest.approx((0.95 + 0.5 + 0.3) / 3)
    assert (found["low"], found["high"]) == pytest.approx((found["value"] - 0.1, found["value"] + 0.1))


def test_batches_without_an_estimate_are_left_out() -> None:
    labels = torch.ones(6, dtype=torch.long)
    found = stream_estimate(answers([1] * 6, 2), labels, [None, guess(0.95), None])
    expected = {"value": 0.95, "low": 0.85, "high": 1.05, "covered": 1.0, "off": 0.05}
    assert found == pytest.approx(expected)
    assert stream_estimate(answers([1] * 6, 2), labels, [None] * 3) is None


def test_estimates_of_images_of_no_class_are_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "RECENT_IMAGES", 2)
    labels = torch.tensor([-1, -1, 1, -1, 1, 1])  # recent accuracies: none yet, 1, 0
    found = stream_estimate(answers([1, 1, 1, 0, 0, 0], 2), labels, [guess(0.2), guess(0.95), guess(0.5)])
    assert found is not None
    assert found["value"] == pytest.approx((0.95 + 0.5) / 2)
    assert found["covered"] == 0.5
    assert found["off"] == pytest.approx((0.05 + 0.5) / 2)


def test_each_segment_is_cut_into_bins_and_images_of_no_class_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scores, "MOST_BINS", 4)
    labels = torch.tensor([0, 0, -1, 0, 1, 1, 1, 1])
    given = answers([0, 1, 0, 0, 1, 0, 0, 0], 3)
    found = bin_stream(given, labels, [None, None, None], [Segment("day", 4), Segment("night", 4)])
    assert found["images"] == [2, 1, 2, 2]  # two bins a segment, of two images each
    assert found["correct"] == [1, 1, 1, 0]
    assert found["confidence"] == [0.8] * 4
    right, wrong = -math.log(0.8), -math.log(0.2)
    assert found["nll"] == pytest.approx([(right + wrong) / 2, right, (right + wrong) / 2, wrong], abs=1e-4)
    assert found["segments"] == [{"name": "day", "bins": 2}, {"name": "night", "bins": 2}]
    assert "estimate" not in found


def test_an_estimate_is_the_mean_of_its_bin_or_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_BINS", 4)
    labels, known = torch.zeros(8, dtype=torch.long), [None, guess(0.5), guess(0.7), guess(0.9)]
    found = bin_stream(answers([0] * 8, 2), labels, known, [Segment("all", 8)])
    assert found["estimate"] == [None, 0.5, 0.7, 0.9]
    found = bin_stream(answers([0] * 8, 1), labels, [None, *known, None, None, None], [Segment("all", 8)])
    # After images 3 and 4, after image 5, and none after it.
    assert found["estimate"] == [None, 0.6, 0.9, 0.9]


def test_a_bin_of_no_class_alone_has_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_BINS", 2)
    found = bin_stream(answers([0, 0], 2), torch.tensor([0, -1]), [None], [Segment("all", 2)])
    assert (found["images"], found["correct"], found["confidence"]) == ([1, 0], [1, 0], [0.8, 0.0])


@pytest.mark.parametrize(
    ("most_bins", "most_named", "segments", "images", "named"),
    [
        # Never more bins than images.
        (320, 40, {"short": 1, "none": 0, "long": 5}, [1] * 6, {"short": 1, "long": 5}),
        # Many segments have a bin each, but no name, and too many not even a bin.
        (3, 2, {"a": 1, "b": 6, "c": 1}, [1, 6, 1], {"all": 3}),
        (3, 2, dict.fromkeys("abcd", 2), [2, 3, 3], {"all": 3}),
    ],
)
def test_segments_share_the_bins(
    most_bins: int,
    most_named: int,
    segments: dict[str, int],
    images: list[int],
    named: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scores, "MOST_BINS", most_bins)
    monkeypatch.setattr(scores, "MOST_NAMED", most_named)
    total = sum(segments.values())
    stretches = [Segment(name, size) for name, size in segments.items()]
    found = bin_stream(answers([0] * total, total), torch.zeros(total, dtype=torch.long), [None], stretches)
    assert found["images"] == images
    assert found["segments"] == [{"name": name, "bins": bins} for name, bins in named.items()]


def test_batches_and_segments_are_counted_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 0.5]])
    labels, known = torch.tensor([0, 0, 1, 1, 1]), guess(0.5)
    segments = [Segment("day", 3), Segment("night", 2)]
    trace = trace_stream([logits[:2], logits[2:4], logits[4:]], labels, [None, known, None], segments)
    sure = [1 / (1 + torch.tensor(-gap).exp()) for gap in (2.0, 1.0, 3.0, 1.0, 0.5)]
    assert [(batch["images"], batch["correct"]) for batch in trace["batches"]] == [(2, 1), (2, 1), (1, 1)]
    means = [float(sure[0] + sure[1]) / 2, float(sure[2] + sure[3]) / 2, float(sure[4])]
    assert [batch["confidence"] for batch in trace["batches"]] == pytest.approx(means, abs=1e-5)
    assert [batch["estimate"] for batch in trace["batches"]] == [None, known, None]
    day, night = trace["segments"]
    assert (day["name"], day["images"], night["name"], night["images"]) == ("day", 3, "night", 2)
    assert day["scores"]["accuracy"] == pytest.approx(2 / 3)
    assert night["scores"]["accuracy"] == 0.5
    assert sum(night["reliability"]["confidence"]) == pytest.approx(float(sure[3] + sure[4]), abs=1e-5)


def test_images_of_no_class_are_left_out_of_batches_and_segments() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    segments = [Segment("day", 2), Segment("night", 2)]
    trace = trace_stream(list(logits.split(2)), torch.tensor([0, -1, -1, -1]), [None, None], segments)
    assert [(batch["images"], batch["correct"]) for batch in trace["batches"]] == [(1, 1), (0, 0)]
    found = [(each["name"], each["images"], each["scores"]["accuracy"]) for each in trace["segments"]]
    assert found == [("day", 1, 1.0)]


@pytest.mark.parametrize(
    ("segments", "named"),
    [([], {"all": 3}), ([Segment("day", 3), Segment("night", 0)], {"day": 3})],
)
def test_without_segments_the_stream_is_one_and_empty_ones_are_left_out(
    segments: list[Segment], named: dict[str, int]
) -> None:
    trace = trace_stream([torch.eye(3)], torch.arange(3), [None], segments)
    assert {segment["name"]: segment["images"] for segment in trace["segments"]} == named


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([Segment("day", 2)], "segments of 3 images in all, got 2 of day"),
        ([Segment("day", 2), Segment("day", 1)], "different names, got day, day"),
    ],
)
def test_segments_that_do_not_fit_the_stream_are_refused(segments: list[Segment], said: str) -> None:
    with pytest.raises(DataError, match=said):
        trace_stream([torch.eye(3)], torch.arange(3), [None], segments)


@register_data_set
class ToyDrift(ToyDataSet):
    """Plain images, then noisy and dark ones, in this order."""

    name = "toy-drift"

    @property
    def shifts(self) -> list[Shift]:
        return [Shift("later", "later", ("plain",))]

    def images(self, part: str) -> Images:
        if part == "plain":
            return toy_images("plain", 300)
        return Images.join([toy_images("noisy", 30), toy_images("dark", 25)])

    def segments(self, part: str, limit: int | None) -> list[Segment]:
        return [Segment("noise", 30), Segment("night", 25)]


def test_a_traced_recipe_keeps_the_order_of_the_data_set_and_each_segment(tmp_path: Path) -> None:
    recipe = toy_recipe(
        data="toy-drift",
        order="recorded",
        trace=True,
        temperings=["none"],
        methods={"source": {"batch_size": 10}},
    )
    go(recipe, tmp_path)
    online, after = sorted(lines(tmp_path / "out"), key=lambda line: line["cell"]["protocol"], reverse=True)
    assert "trace" not in after  # only answers given while adapting have a time
    trace = online["trace"]
    assert [batch["images"] for batch in trace["batches"]] == [10, 10, 10, 10, 10, 5]
    found = [(segment["name"], segment["images"]) for segment in trace["segments"]]
    assert found == [("noise", 30), ("night", 25)]
    hits = [batch["correct"] for batch in trace["batches"]]
    assert sum(hits[:3]) == round(30 * trace["segments"][0]["scores"]["accuracy"])
    assert sum(hits[3:]) == round(25 * trace["segments"][1]["scores"]["accuracy"])
    assert online["scores"] is not None
    assert sum(hits) == round(55 * online["scores"]["accuracy"])
