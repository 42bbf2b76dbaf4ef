import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise import metrics
from tests.metrics import reference

WITH_TARGET: dict[str, Callable[..., Tensor]] = {
    "accuracy": metrics.accuracy,
    "expected_error": metrics.expected_calibration_error,
    "maximum_error": metrics.maximum_calibration_error,
    "adaptive_error": metrics.adaptive_calibration_error,
    "area_under_risk_coverage": metrics.area_under_risk_coverage,
    "classwise_error": metrics.classwise_calibration_error,
    "negative_log_likelihood": metrics.negative_log_likelihood,
    "brier_score": metrics.brier_score,
}


class LargestResult(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation gives."""

    size = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.size = max(self.size, result.nbytes)
        return result


@pytest.mark.parametrize("name", WITH_TARGET)
@pytest.mark.parametrize("samples", [1, 7, 200])
@pytest.mark.parametrize("ties", [False, True])
def test_matches_the_formula(name: str, samples: int, ties: bool) -> None:
    logits, target = reference.random_logits(samples, samples, ties=ties)
    probs = logits.softmax(dim=1)
    expected = getattr(reference, name)(reference.as_numpy(probs), reference.labels_of(target))
    for given in ({"probs": probs}, {"logits": logits}):
        got = WITH_TARGET[name](**given, target=target)
        assert got.shape == () and got.dtype == torch.float64
        assert float(got) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", ["expected_error", "maximum_error", "adaptive_error", "classwise_error"])
@pytest.mark.parametrize("bins", [1, 2, 10, 500])
def test_matches_the_formula_with_other_bins(name: str, bins: int) -> None:
    logits, target = reference.random_logits(3, 101, ties=True)
    probs = logits.softmax(dim=1)
    expected = getattr(reference, name)(reference.as_numpy(probs), reference.labels_of(target), bins)
    got = WITH_TARGET[name](probs=probs, target=target, bins=bins)
    assert float(got) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_entropy_matches_the_formula() -> None:
    logits, _ = reference.random_logits(0, 50)
    probs = logits.softmax(dim=1)
    for got in (metrics.entropy(probs=probs), metrics.entropy(logits=logits)):
        assert float(got) == pytest.approx(reference.entropy(reference.as_numpy(probs)), rel=1e-12)


def test_reliability_bins_match_the_formula() -> None:
    logits, target = reference.random_logits(1, 60)
    probs = logits.softmax(dim=1)
    record = metrics.reliability_bins(probs=probs, target=target, bins=6)
    confidence = probs.amax(dim=1)
    correct = (probs.argmax(dim=1) == target).double()
    for b in range(6):
        inside = (confidence > b / 6) & (confidence <= (b + 1) / 6)
        assert float(record.lower[b]) == pytest.approx(b / 6)
        assert float(record.upper[b]) == pytest.approx((b + 1) / 6)
        assert int(record.count[b]) == int(inside.sum())
        assert float(record.confidence[b]) == pytest.approx(float(confidence[inside].mean()), nan_ok=True)
        assert float(record.accuracy[b]) == pytest.approx(float(correct[inside].mean()), nan_ok=True)
    assert bool(record.accuracy[0].isnan())  # the largest of four probabilities is above 1/6
    assert record.count.dtype == torch.int64


def test_reliability_record_shows_its_fields() -> None:
    record = metrics.reliability_bins(probs=torch.eye(2), target=torch.tensor([0, 1]))
    assert "count=tensor" in repr(record)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(dtype: torch.dtype) -> None:
    # Ten binary-exact edges would hide rounding: take tenths, as the dtype rounds them.
    bins = 10
    edges = torch.arange(5, 11, dtype=dtype) / bins
    probs = torch.stack([edges, 1 - edges], dim=1)
    record = metrics.reliability_bins(probs=probs, target=torch.zeros(6, dtype=torch.long), bins=bins)
    assert record.count.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_does_not_lift_a_confidence_over_its_edge(dtype: torch.dtype) -> None:
    # In bfloat16 all of these round upwards, and a fifth is no edge any more once it is widened.
    fifths = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=dtype)
    rest = ((1 - fifths) / 5)[:, None].expand(4, 5)  # the larger of fifth and rest is the confidence
    probs = torch.cat([fifths[:, None], rest], dim=1)
    record = metrics.reliability_bins(probs=probs, target=torch.zeros(4, dtype=torch.long))
    assert record.count.nonzero().flatten().tolist() == [2, 5, 8, 11]
    metric = metrics.Reliability()
    metric.update(probs=probs, target=torch.zeros(4, dtype=torch.long))
    assert torch.equal(metric.compute().count, record.count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_does_not_lift_a_probability_over_its_edge(dtype: torch.dtype) -> None:
    # A fifth lies in the bin below that of a quarter; in the same bin their two gaps would cancel.
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.25, 0.45, 0.3]], dtype=dtype)
    target = torch.tensor([0, 1])
    gaps = torch.nn.functional.one_hot(target, 3) - probs.double()
    expected = float(gaps.abs().sum()) / 6
    metric = metrics.ClasswiseCalibrationError(num_classes=3)
    metric.update(probs=probs, target=target)
    assert float(metric.compute()) == pytest.approx(expected)
    assert float(metrics.classwise_calibration_error(probs=probs, target=target)) == pytest.approx(expected)


def test_half_types_rank_as_finely_as_they_are() -> None:
    # Neighbours in float16: the cells of the adaptive grid must not coincide where its values do not.
    confidence = torch.tensor([0.5, 0.50048828125, 0.5009765625], dtype=torch.float16)
    metric = metrics.AdaptiveCalibrationError()
    metric.update(
        probs=torch.stack([confidence, 1 - confidence], dim=1), target=torch.zeros(3, dtype=torch.long)
    )
    assert metric.sums[:, 0].nonzero().flatten().tolist() == [2047, 2049, 2051]


def test_half_open_bins_decide_the_error() -> None:
    # 0.5 right and 0.6 wrong: (0, .5] and (.5, 1] keep them apart, [.5, 1) would let them cancel.
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4]], dtype=torch.float64)
    got = metrics.expected_calibration_error(probs=probs, target=torch.tensor([0, 1]), bins=2)
    assert float(got) == pytest.approx((0.5 + 0.6) / 2)


def test_saturated_confidence_lies_in_the_last_bin() -> None:
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.96, 0.04], [0.96, 0.04]])
    target = torch.tensor([0, 0, 0, 1])
    record = metrics.reliability_bins(probs=probs, target=target)
    assert record.count.tolist() == [0] * 14 + [4]
    ece = metrics.expected_calibration_error(probs=probs, target=target)
    assert float(ece) == pytest.approx(abs(0.75 - 0.98), abs=1e-6)
    saturated = metrics.expected_calibration_error(
        logits=torch.tensor([[1e4, 0.0]]), target=torch.tensor([1])
    )
    assert float(saturated) == 1.0


def test_confidence_zero_lies_in_the_first_bin() -> None:
    # p_1 is exactly 0 twice: the class's first bin then has confidence 0 and frequency 1/2.
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    got = metrics.classwise_calibration_error(probs=probs, target=torch.tensor([0, 1]))
    assert float(got) == pytest.approx(0.5)


def test_one_class() -> None:
    given = {"logits": torch.randn(5, 1), "target": torch.zeros(5, dtype=torch.long)}
    assert float(metrics.accuracy(**given)) == 1
    for name in WITH_TARGET:
        if name != "accuracy":
            assert float(WITH_TARGET[name](**given)) == 0
    assert float(metrics.entropy(logits=given["logits"])) == 0


@pytest.mark.parametrize("name", WITH_TARGET)
def test_no_samples_give_nan(name: str) -> None:
    nothing = torch.zeros(0, 3)
    for given in ({"probs": nothing}, {"logits": nothing}):
        assert bool(WITH_TARGET[name](**given, target=torch.zeros(0, dtype=torch.long)).isnan())


def test_no_samples_give_nan_entropy_and_zero_counts() -> None:
    nothing = torch.zeros(0, 3)
    assert bool(metrics.entropy(probs=nothing).isnan())
    record = metrics.reliability_bins(logits=nothing, target=torch.zeros(0, dtype=torch.long))
    assert record.count.tolist() == [0] * 15 and bool(record.accuracy.isnan().all())


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_dtype_of_the_result(given: torch.dtype, returned: torch.dtype) -> None:
    logits, target = reference.random_logits(0, 20)
    for function in WITH_TARGET.values():
        assert function(logits=logits.to(given), target=target).dtype == returned
        probs = logits.to(given).softmax(dim=1)
        assert function(probs=probs, target=target.to(torch.int16)).dtype == returned
    assert metrics.entropy(logits=logits.to(given)).dtype == returned
    record = metrics.reliability_bins(logits=logits.to(given), target=target)
    assert record.lower.dtype == record.confidence.dtype == record.accuracy.dtype == returned


def test_half_types_are_computed_in_float32() -> None:
    logits, target = reference.random_logits(0, 200)
    half = logits.to(torch.bfloat16)
    for function in WITH_TARGET.values():
        assert torch.equal(function(logits=half, target=target), function(logits=half.float(), target=target))


def test_float32_sums_do_not_drift() -> None:
    # Summed in float32 one by one, 2**24 + 1 samples of weight 1 would stop counting; 3e5 of 0.7 show it.
    probs = torch.tensor([[0.7, 0.3]]).expand(300_000, 2)
    target = torch.zeros(300_000, dtype=torch.long)
    got = metrics.expected_calibration_error(probs=probs, target=target)
    assert float(got) == pytest.approx(1 - float(torch.tensor(0.7)), rel=1e-6)
    assert float(metrics.brier_score(probs=probs, target=target)) == pytest.approx(0.18, rel=1e-6)


def test_likelihood_is_not_clipped() -> None:
    target = torch.tensor([1])
    assert math.isinf(metrics.negative_log_likelihood(probs=torch.tensor([[1.0, 0.0]]), target=target))
    barred = torch.tensor([[0.0, -math.inf]])
    assert math.isinf(metrics.negative_log_likelihood(logits=barred, target=target))
    # log of a softmax that underflows would be infinite; log_softmax is not.
    far = metrics.negative_log_likelihood(logits=torch.tensor([[0.0, -500.0]]), target=target)
    assert float(far) == pytest.approx(500)


def test_minus_infinite_logits_are_probability_zero() -> None:
    barred = torch.tensor([[0.0, 0.0, -math.inf]])
    assert float(metrics.entropy(logits=barred)) == pytest.approx(1)
    assert float(metrics.brier_score(logits=barred, target=torch.tensor([0]))) == pytest.approx(0.5)


def test_prediction_comes_from_the_logits() -> None:
    # One float32 step apart, these logits have equal probabilities, whose argmax is the first.
    first = torch.tensor(0.001)
    logits = torch.stack([first, torch.nextafter(first, torch.tensor(1.0))])[None]
    assert logits[0, 0] < logits[0, 1] and len(logits.softmax(dim=1).unique()) == 1
    assert float(metrics.accuracy(logits=logits, target=torch.tensor([1]))) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_brier_score_is_exact_near_certainty(dtype: torch.dtype) -> None:
    # Where p_y is all but 1, a formula that cancels would leave its rounding and nothing else.
    logits = torch.tensor([[10.0, 0.0, -3.0], [3.0, -4.0, 5.0]], dtype=dtype)
    target = torch.tensor([0, 2])
    probs = logits.softmax(dim=1)
    naive = reference.brier_score(reference.as_numpy(probs), reference.labels_of(target))
    assert float(metrics.brier_score(probs=probs, target=target)) == pytest.approx(naive, rel=1e-6)


def test_brier_score_takes_no_more_memory_than_the_predictions() -> None:
    probs = torch.rand(64, 100).softmax(dim=1)
    target = torch.zeros(64, dtype=torch.long)
    before = probs.clone()
    with LargestResult() as largest:
        metrics.brier_score(probs=probs, target=target)
    assert largest.size == probs.nbytes
    assert torch.equal(probs, before)


def test_results_carry_no_gradient() -> None:
    logits, target = reference.random_logits(0, 20)
    batches: list[dict[str, Any]] = [
        {"logits": logits.clone().requires_grad_()},
        {"probs": logits.softmax(dim=1).requires_grad_()},
    ]
    for given in batches:
        values = [function(**given, target=target) for function in WITH_TARGET.values()]
        values += [metrics.entropy(**given)]
        values += vars(metrics.reliability_bins(**given, target=target)).values()
        assert not any(value.requires_grad for value in values)


def test_non_contiguous_predictions() -> None:
    logits, target = reference.random_logits(0, 30)
    sliced = logits.repeat(1, 2)[:, ::2].T.contiguous().T
    for function in WITH_TARGET.values():
        plain = function(logits=sliced.contiguous(), target=target)
        assert torch.allclose(function(logits=sliced, target=target), plain, rtol=1e-12)
        probs = sliced.softmax(dim=1).T.contiguous().T
        assert torch.allclose(function(probs=probs, target=target), plain, rtol=1e-12)
