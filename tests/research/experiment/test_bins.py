"""A stream over time in bins, counted by hand."""

import math

import pytest
import torch

from equipoise.research.experiment import scoring
from equipoise.research.experiment.schema import EstimatedAccuracy
from equipoise.research.experiment.scoring import bin_stream
from equipoise.streams import Segment


def guess(value: float) -> EstimatedAccuracy:
    return EstimatedAccuracy(value=value, low=value, high=value)


def answers(classes: list[int], batch: int) -> list[torch.Tensor]:
    """Batches of answers that are 0.8 sure of these of two classes."""
    logits = torch.full((len(classes), 2), 0.2).log()
    logits[range(len(classes)), classes] = torch.tensor(0.8).log()
    return list(logits.split(batch))


def test_each_segment_is_cut_into_bins_and_images_of_no_class_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "MOST_BINS", 4)
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
    monkeypatch.setattr(scoring, "MOST_BINS", 4)
    labels = torch.zeros(8, dtype=torch.long)
    known = [None, guess(0.5), guess(0.7), guess(0.9)]
    found = bin_stream(answers([0] * 8, 2)[:4], labels, known, [Segment("all", 8)])
    assert found["estimate"] == [None, 0.5, 0.7, 0.9]
    found = bin_stream(answers([0] * 8, 1), labels, [None, *known, None, None, None], [Segment("all", 8)])
    assert found["estimate"] == [
        None,
        0.6,
        0.9,
        0.9,
    ]  # after images 3 and 4, after image 5, and none after it


def test_a_bin_of_no_class_alone_has_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MOST_BINS", 2)
    found = bin_stream(answers([0, 0], 2), torch.tensor([0, -1]), [None], [Segment("all", 2)])
    assert (found["images"], found["correct"], found["confidence"]) == ([1, 0], [1, 0], [0.8, 0.0])


def test_segments_are_never_cut_into_more_bins_than_images() -> None:
    segments = [Segment("short", 1), Segment("none", 0), Segment("long", 5)]
    found = bin_stream(answers([0] * 6, 4), torch.zeros(6, dtype=torch.long), [None, None], segments)
    assert found["images"] == [1] * 6
    assert found["segments"] == [{"name": "short", "bins": 1}, {"name": "long", "bins": 5}]


def test_many_segments_have_a_bin_each_but_no_name_and_too_many_not_even_a_bin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "MOST_NAMED", 2)
    monkeypatch.setattr(scoring, "MOST_BINS", 3)
    labels = torch.zeros(8, dtype=torch.long)
    several = [Segment("a", 1), Segment("b", 6), Segment("c", 1)]
    found = bin_stream(answers([0] * 8, 8), labels, [None], several)
    assert (found["images"], found["segments"]) == ([1, 6, 1], [{"name": "all", "bins": 3}])
    too_many = [Segment(str(place), 2) for place in range(4)]
    found = bin_stream(answers([0] * 8, 8), labels, [None], too_many)
    assert (found["images"], found["segments"]) == ([2, 3, 3], [{"name": "all", "bins": 3}])
