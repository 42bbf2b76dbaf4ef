"""Estimates along a stream, summed up."""

import pytest
import torch

from equipoise.research.experiment import scoring
from equipoise.research.experiment.schema import EstimatedAccuracy
from equipoise.research.experiment.scoring import stream_estimate


def estimate(value: float) -> EstimatedAccuracy:
    return EstimatedAccuracy(value=value, low=value - 0.1, high=value + 0.1)


def answers(right: list[int]) -> list[torch.Tensor]:
    """Batches of two answers each; all labels are class 1."""
    logits = torch.tensor([[0.0, 1.0] if hit else [1.0, 0.0] for hit in right])
    return list(logits.split(2))


def test_means_and_coverage_are_of_the_recent_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RECENT_IMAGES", 4)
    given = answers([1, 1, 1, 0, 0, 0])  # recent accuracies: 1, 3/4, 1/4
    known = [estimate(0.95), estimate(0.5), estimate(0.3)]
    found = stream_estimate(given, torch.ones(6, dtype=torch.long), known)
    assert found is not None
    assert found["covered"] == pytest.approx(2 / 3)
    assert found["value"] == pytest.approx((0.95 + 0.5 + 0.3) / 3)
    assert (found["low"], found["high"]) == pytest.approx((found["value"] - 0.1, found["value"] + 0.1))


def test_batches_without_an_estimate_are_left_out() -> None:
    labels = torch.ones(6, dtype=torch.long)
    found = stream_estimate(answers([1] * 6), labels, [None, estimate(0.95), None])
    assert found is not None
    assert found == {
        "value": 0.95,
        "low": 0.85,
        "high": pytest.approx(1.05),
        "covered": 1.0,
        "off": pytest.approx(0.05),
    }
    assert stream_estimate(answers([1] * 6), labels, [None] * 3) is None


def test_images_of_no_class_are_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RECENT_IMAGES", 2)
    given = answers([1, 1, 1, 0, 0, 0])
    labels = torch.tensor([-1, -1, 1, -1, 1, 1])  # recent accuracies: none yet, 1, 0
    found = stream_estimate(given, labels, [estimate(0.2), estimate(0.95), estimate(0.5)])
    assert found is not None
    assert found["value"] == pytest.approx((0.95 + 0.5) / 2)
    assert found["covered"] == 0.5
    assert found["off"] == pytest.approx((0.05 + 0.5) / 2)
