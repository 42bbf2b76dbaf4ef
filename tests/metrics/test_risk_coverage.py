"""Answers withheld, and prediction sets: formulas written out, ties, empty streams, half types."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from equipoise import metrics
from equipoise.errors import BatchTypeError, OptionError
from tests.metrics import reference
from tests.metrics.reference import calibrated_stream, gather_twice, random_logits


def two_classes(confidence: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    first = torch.tensor(confidence, dtype=dtype)
    return torch.stack([first, 1 - first], dim=1)


@pytest.mark.parametrize("ties", [False, True])
def test_the_curve_matches_a_loop_over_thresholds(ties: bool) -> None:
    logits, target = random_logits(5, 150, ties=ties)
    probs = logits.softmax(dim=1)
    confidence, wrong = probs.amax(dim=1), probs.argmax(dim=1) != target
    thresholds = sorted(set(confidence.tolist()), reverse=True)
    curve = metrics.risk_coverage(logits=logits, target=target)
    assert curve.confidence.tolist() == thresholds
    assert (len(thresholds) < 150) is ties
    for k, threshold in enumerate(thresholds):
        answered = confidence >= threshold
        assert float(curve.share[k]) == pytest.approx(int(answered.sum()) / 150)
        assert float(curve.risk[k]) == pytest.approx(int(wrong[answered].sum()) / int(answered.sum()))


def test_equally_confident_samples_are_answered_together() -> None:
    # One by one, the area would depend on which of the two comes first: (0 + 1/2) / 2 or (1 + 1/2) / 2.
    probs = two_classes([0.75, 0.75])
    for target in ([0, 1], [1, 0]):
        curve = metrics.risk_coverage(probs=probs, target=torch.tensor(target))
        assert (curve.confidence.tolist(), curve.share.tolist(), curve.risk.tolist()) == ([0.75], [1], [0.5])
        assert float(curve.area) == 0.5


def test_the_area_of_confidence_that_tells_nothing_is_the_error_rate() -> None:
    probs = two_classes([0.8] * 10)
    target = torch.tensor([0] * 7 + [1] * 3)
    assert float(metrics.area_under_risk_coverage(probs=probs, target=target)) == pytest.approx(0.3)


def test_the_point_of_a_risk_is_the_largest_share_that_keeps_it() -> None:
    # Errors at ranks 2 and 5: the risks are 0, 1/2, 1/3, 1/4, 2/5, and 0.3 is kept, lost, and kept again.
    probs = two_classes([0.95, 0.9, 0.85, 0.8, 0.75])
    curve = metrics.risk_coverage(probs=probs, target=torch.tensor([0, 1, 0, 0, 1]))
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4, 2 / 5])
    assert curve.at_risk(0.3) == pytest.approx((0.8, 0.8, 0.25))
    assert curve.at_risk(0.25) == pytest.approx((0.8, 0.8, 0.25))
    assert curve.at_risk(0.1) == pytest.approx((0.95, 0.2, 0))
    assert curve.at_risk(0.4) == pytest.approx((0.75, 1, 0.4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_risk_is_compared_in_the_dtype_of_the_curve(dtype: torch.dtype) -> None:
    # 1/20 in float32 is above 0.05: the one error in twenty is a risk of 0.05 all the same.
    probs = two_classes([0.9] * 20, dtype)
    curve = metrics.risk_coverage(probs=probs, target=torch.tensor([0] * 19 + [1]))
    assert curve.at_risk(0.05).share == 1


def test_a_risk_that_is_out_of_reach_answers_nothing() -> None:
    curve = metrics.risk_coverage(probs=two_classes([0.9, 0.8]), target=torch.tensor([1, 0]))
    point = curve.at_risk(0.1)
    assert (point.confidence, point.share) == (math.inf, 0) and math.isnan(point.risk)


def test_no_samples_give_an_empty_curve() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    curve = metrics.risk_coverage(probs=torch.zeros(0, 3), target=nothing)
    assert len(curve.confidence) == len(curve.share) == len(curve.risk) == 0
    assert bool(curve.area.isnan()) and curve.at_risk(1.0).share == 0
    stream = metrics.AreaUnderRiskCoverage()
    stream.update(probs=torch.zeros(0, 3), target=nothing)
    assert len(stream.curve().share) == 0 and bool(stream.compute().isnan())


def test_rows_of_nan_are_left_out() -> None:
    logits, target = random_logits(6, 40)
    answers = logits.clone()
    answers[5:17] = torch.nan
    kept = ~answers.isnan().all(dim=1)
    curve = metrics.risk_coverage(logits=answers, target=target)
    expected = metrics.risk_coverage(logits=logits[kept], target=target[kept])
    for got, wanted in zip(vars(curve).values(), vars(expected).values(), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_of_the_curve(given: torch.dtype) -> None:
    logits, target = random_logits(0, 20)
    curve = metrics.risk_coverage(logits=logits.to(given).requires_grad_(), target=target)
    wanted = torch.float64 if given == torch.float64 else torch.float32
    assert {of.dtype for of in (*vars(curve).values(), curve.area)} == {wanted}
    assert not any(of.requires_grad for of in vars(curve).values())


def test_float32_shares_add_up() -> None:
    # 300,000 levels of confidence, whose steps of the share float32 holds to a few digits only.
    probs = torch.linspace(0.5, 1, 300_000)
    target = (torch.arange(300_000) % 4 == 0).long()
    pairs = torch.stack([probs, 1 - probs], dim=1)
    curve = metrics.risk_coverage(probs=pairs, target=target)
    exact = metrics.area_under_risk_coverage(probs=pairs.double(), target=target)
    assert float(curve.area) == pytest.approx(float(exact), abs=1e-6)


@pytest.mark.parametrize("sharpness", [0.5, 1, 3, 10, 40])
def test_the_area_of_a_stream_is_close_to_exact_ranks(sharpness: float) -> None:
    # At 40, seven of ten answers are surer than 1 - 1e-8: cells of equal width would hold them all in one.
    logits, target, _ = calibrated_stream(0, 20_000, sharpness=sharpness)
    metric = metrics.AreaUnderRiskCoverage()
    for part, labels in zip(logits.split(5_000), target.split(5_000), strict=True):
        metric.update(logits=part, target=labels)
    exact = metrics.area_under_risk_coverage(logits=logits, target=target)
    assert float(metric.compute()) == pytest.approx(float(exact), abs=1e-3)
    assert float(metric.compute()) == float(metric.curve().area)


def test_the_area_of_a_stream_is_off_by_no_more_than_its_docstring_says() -> None:
    # Four neighbours in one cell, the errors last: the exact risks are 0, 0, 1/3, 1/2; together, 1/2.
    probs = two_classes([0.7503, 0.7502, 0.7501, 0.75])
    target = torch.tensor([0, 0, 1, 1])
    metric = metrics.AreaUnderRiskCoverage()
    metric.update(probs=probs, target=target)
    exact = float(metrics.area_under_risk_coverage(probs=probs, target=target))
    assert len(metric.curve().share) == 1
    assert float(metric.compute()) == 0.5 and exact == pytest.approx((1 / 3 + 1 / 2) / 4)


def test_thresholds_of_a_stream_answer_the_shares_they_say() -> None:
    logits, target = random_logits(7, 500, scale=3)
    metric = metrics.AreaUnderRiskCoverage()
    metric.update(logits=logits, target=target)
    curve, probs = metric.curve(), logits.softmax(dim=1)
    confidence, wrong = probs.amax(dim=1), probs.argmax(dim=1) != target
    assert len(curve.share) > 200
    for threshold, share, risk in zip(*vars(curve).values(), strict=True):
        answered = confidence >= threshold
        assert float(share) == pytest.approx(float(answered.double().mean()))
        assert float(risk) == pytest.approx(float(wrong[answered].double().mean()))


def test_certain_answers_lie_in_the_last_cell() -> None:
    # Certain rows may sum to a little more than 1, and one class has confidence 1 always.
    metric = metrics.AreaUnderRiskCoverage()
    metric.update(probs=torch.eye(2) * 1.009, target=torch.tensor([0, 0]))
    metric.update(logits=torch.zeros(1, 1), target=torch.tensor([0]))
    metric.update(probs=two_classes([0.9]), target=torch.tensor([1]))
    curve = metric.curve()
    assert curve.share.tolist() == [0.75, 1] and curve.risk.tolist() == pytest.approx([1 / 3, 1 / 2])
    assert float(curve.confidence[0]) == 1


def test_the_curve_of_a_stream_is_of_all_processes() -> None:
    logits, target = random_logits(8, 30)
    metric = metrics.AreaUnderRiskCoverage(dist_sync_fn=gather_twice, distributed_available_fn=lambda: True)
    metric.update(logits=logits, target=target)
    single = metrics.AreaUnderRiskCoverage()
    single.update(logits=logits, target=target)
    assert torch.equal(metric.curve().risk, single.curve().risk)
    assert metric.sums.sum() == single.sums.sum()  # back to this process's own


def test_coverage_and_size_of_sets() -> None:
    sets = torch.tensor(
        [[True, False, True], [False, False, False], [True, True, True], [False, True, False]]
    )
    target = torch.tensor([2, 0, 1, 0])
    covered = [bool(row[label]) for row, label in zip(sets, target, strict=True)]
    assert float(metrics.set_coverage(sets, target)) == sum(covered) / 4 == 0.5
    assert float(metrics.set_size(sets)) == (2 + 0 + 3 + 1) / 4
    assert bool(metrics.set_coverage(sets[:0], target[:0]).isnan()) and bool(
        metrics.set_size(sets[:0]).isnan()
    )


def test_many_sets_are_counted_without_drift() -> None:
    sets = torch.ones(1, 1).bool().expand(20_000_001, 1)
    assert float(metrics.set_size(sets)) == 1


@pytest.mark.parametrize(
    ("sets", "target", "error", "message"),
    [
        ([[True]], torch.tensor([0]), BatchTypeError, "sets to be a tensor, got list"),
        (torch.ones(1, 2), torch.tensor([0]), OptionError, r"sets of booleans.*got torch\.float32"),
        (torch.ones(2).bool(), torch.tensor([0]), OptionError, r"shape \(N, C\).*got \(2,\)"),
        (torch.ones(2, 0).bool(), torch.tensor([0, 0]), OptionError, r"at least one class, got \(2, 0\)"),
        (torch.ones(2, 3).bool(), torch.tensor([0, 3]), OptionError, r"values in 0\.\.2, got 0\.\.3"),
        (torch.ones(2, 3).bool(), torch.tensor([0]), OptionError, r"shape \(2,\), got \(1,\)"),
        (torch.ones(2, 3).bool(), torch.tensor([0.0, 1.0]), OptionError, "integer dtype"),
    ],
)
def test_refuses_sets(sets: Any, target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        metrics.set_coverage(sets, target)


def test_a_collection_keeps_the_area_apart_from_the_calibration_errors() -> None:
    logits, target = random_logits(9, 50)
    collection = MetricCollection(
        {"area": metrics.AreaUnderRiskCoverage(), "adaptive": metrics.AdaptiveCalibrationError()}
    )
    for part, labels in zip(logits.split(25), target.split(25), strict=True):
        collection.update(logits=part, target=labels)
    probs, labels_of_all = reference.as_numpy(logits.softmax(dim=1)), reference.labels_of(target)
    expected = reference.area_under_risk_coverage(probs, labels_of_all, cells=True)
    assert float(collection.compute()["area"]) == pytest.approx(expected)
