import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from equipoise import metrics
from tests.metrics.reference import random_logits

Batch = tuple[Tensor, Tensor]
quick = settings(deadline=None, derandomize=True, max_examples=60)


@st.composite
def batches(draw: st.DrawFn, min_classes: int = 1) -> Batch:
    return random_logits(
        draw(st.integers(0, 2**31)),
        draw(st.integers(1, 60)),
        draw(st.integers(min_classes, 6)),
        scale=draw(st.sampled_from([0.1, 1.0, 10.0, 1000.0])),
        ties=draw(st.booleans()),
    )


def all_values(logits: Tensor, target: Tensor) -> list[Tensor]:
    return [
        metrics.accuracy(logits=logits, target=target),
        metrics.expected_calibration_error(logits=logits, target=target),
        metrics.maximum_calibration_error(logits=logits, target=target),
        metrics.adaptive_calibration_error(logits=logits, target=target),
        metrics.classwise_calibration_error(logits=logits, target=target),
        metrics.negative_log_likelihood(logits=logits, target=target),
        metrics.brier_score(logits=logits, target=target),
        metrics.entropy(logits=logits),
    ]


@quick
@given(batches())
def test_bounds(batch: Batch) -> None:
    logits, target = batch
    rounding = 1e-12
    accuracy, ece, mce, adaptive, classwise, nll, brier, entropy = map(float, all_values(logits, target))
    for value in (accuracy, ece, mce, adaptive, classwise):
        assert 0 <= value <= 1 + rounding
    assert ece <= mce + rounding
    assert nll >= 0
    assert 0 <= brier <= 2 + rounding
    assert 0 <= entropy <= math.log2(logits.shape[1]) + rounding


@quick
@given(batches(), st.integers(1, 40))
def test_one_bin_of_all_samples_is_the_least_any_binning_gives(batch: Batch, bins: int) -> None:
    logits, target = batch
    confidence = logits.softmax(dim=1).amax(dim=1).mean()
    least = float((metrics.accuracy(logits=logits, target=target) - confidence).abs())
    for function in (metrics.expected_calibration_error, metrics.adaptive_calibration_error):
        assert float(function(logits=logits, target=target, bins=1)) == pytest.approx(least, abs=1e-12)
        assert float(function(logits=logits, target=target, bins=bins)) >= least - 1e-12


@quick
@given(batches(), st.integers(0, 2**31))
def test_order_does_not_matter(batch: Batch, seed: int) -> None:
    logits, target = batch
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        all_values(logits[order], target[order]), all_values(logits, target), rtol=1e-12, atol=1e-14
    )


@quick
@given(batches(), st.floats(0.05, 20))
def test_temperature_leaves_accuracy_alone(batch: Batch, temperature: float) -> None:
    logits, target = batch
    scaled = metrics.accuracy(logits=logits / temperature, target=target)
    assert torch.equal(scaled, metrics.accuracy(logits=logits, target=target))


@quick
@given(batches(min_classes=2))
def test_agrees_with_torchmetrics(batch: Batch) -> None:
    logits, target = batch
    probs = logits.softmax(dim=1)
    classes = logits.shape[1]
    # Away from its defects: no confidence on an edge, and so none of exactly 1. It counts in float32.
    in_bins = probs.amax(dim=1) * 15
    inside = (in_bins - in_bins.round()).abs() > 1e-4
    probs, target = probs[inside], target[inside]
    if not len(target):
        return
    theirs = multiclass_calibration_error(probs, target, classes, n_bins=15, norm="l1")
    ours = metrics.expected_calibration_error(probs=probs, target=target)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)
    theirs = multiclass_calibration_error(probs, target, classes, n_bins=15, norm="max")
    ours = metrics.maximum_calibration_error(probs=probs, target=target)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)
    theirs = multiclass_accuracy(probs, target, classes, average="micro")
    ours = metrics.accuracy(probs=probs, target=target)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-6)
