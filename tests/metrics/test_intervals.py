import math
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import metrics
from equipoise.errors import OptionError
from tests.metrics.reference import calibrated_stream, gather_twice

Interval = tuple[Tensor, Tensor]
RUNS = 300


def holds(interval: Interval, truth: float) -> bool:
    low, high = interval
    return float(low) <= truth <= float(high)


def ece_interval(seed: int, samples: int, sharpness: float) -> Interval:
    logits, target, _ = calibrated_stream(seed, samples, sharpness=sharpness)
    metric = metrics.ExpectedCalibrationError()
    metric.update(logits=logits, target=target)
    return metric.interval()


def constant_stream(generator: torch.Generator, samples: int, confidence: float, accuracy: float) -> Interval:
    """The interval of a stream whose every answer is as confident, checked to hold what was measured."""
    right = torch.rand(samples, generator=generator) < accuracy
    probs = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(samples, 2)
    metric = metrics.ExpectedCalibrationError()
    metric.update(probs=probs, target=(~right).long())
    interval = metric.interval()
    assert holds(interval, float(metric.compute()))
    return interval


def true_binned_error(sharpness: float) -> float:
    logits, _, truth = calibrated_stream(12345, 500_000, sharpness=sharpness)
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    gap = truth.gather(1, predicted[:, None]).squeeze(1) - confidence
    inside = (confidence * 15).ceil()
    return sum(abs(float(gap[inside == b].sum())) for b in range(1, 16)) / len(gap)


def test_accuracy_and_likelihood_cover_the_truth() -> None:
    logits, _, truth = calibrated_stream(12345, 500_000, sharpness=2)
    true_accuracy = float(truth.gather(1, logits.argmax(dim=1, keepdim=True)).mean())
    true_nll = float(-(truth * logits.log_softmax(dim=1)).sum(dim=1).mean())
    true_entropy = float(-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()) / 0.6931471805599453
    true_brier = float(
        (truth * (1 - 2 * logits.softmax(1))).sum(1).mean() + logits.softmax(1).square().sum(1).mean()
    )
    covered = {"accuracy": 0, "nll": 0, "entropy": 0, "brier": 0}
    for seed in range(RUNS):
        logits, target, _ = calibrated_stream(seed, 300, sharpness=2)
        accuracy, nll = metrics.Accuracy(), metrics.NegativeLogLikelihood()
        entropy, brier = metrics.Entropy(), metrics.BrierScore()
        accuracy.update(logits=logits, target=target)
        nll.update(logits=logits, target=target)
        brier.update(logits=logits, target=target)
        entropy.update(logits=logits)
        covered["accuracy"] += holds(accuracy.interval(), true_accuracy)
        covered["nll"] += holds(nll.interval(), true_nll)
        covered["entropy"] += holds(entropy.interval(), true_entropy)
        covered["brier"] += holds(brier.interval(), true_brier)
    assert all(0.92 <= count / RUNS <= 0.98 for count in covered.values()), covered


@pytest.mark.parametrize(("sharpness", "least", "most"), [(2, 0.88, 0.99), (1.2, 0.85, 1)])
def test_calibration_error_covers_the_truth_of_a_miscalibrated_stream(
    sharpness: float, least: float, most: float
) -> None:
    # Close to calibrated the error is mostly noise: the interval must reach well below what was measured.
    truth = true_binned_error(sharpness)
    assert sharpness < 2 or truth > 0.1
    covered = sum(holds(ece_interval(seed, 1000, sharpness), truth) for seed in range(RUNS)) / RUNS
    assert least <= covered <= most, covered


def test_calibration_error_of_a_calibrated_stream_may_be_zero() -> None:
    lows = [float(ece_interval(seed, 1000, 1)[0]) for seed in range(RUNS)]
    assert lows.count(0.0) / RUNS >= 0.92


@pytest.mark.parametrize(
    ("confidence", "samples"), [(0.95, 20), (0.99, 100), (0.999, 100), (0.999, 1000), (1.0, 20)]
)
def test_calibration_error_of_a_confident_calibrated_stream_may_be_zero(
    confidence: float, samples: int
) -> None:
    # Few of these streams hold an error at all, so few show a spread of their own.
    generator = torch.Generator().manual_seed(samples)
    lows = [float(constant_stream(generator, samples, confidence, confidence)[0]) for _ in range(RUNS)]
    assert lows.count(0.0) / RUNS >= 0.95


@pytest.mark.parametrize(
    ("confidence", "accuracy", "samples"),
    [(0.99, 0.9, 20), (0.99, 0.95, 100), (0.95, 0.9, 100), (0.999, 0.99, 100), (0.9, 0.7, 1000)],
)
def test_calibration_error_covers_the_truth_of_a_confident_stream(
    confidence: float, accuracy: float, samples: int
) -> None:
    # By luck such a stream may show hardly any error: the upper end must not trust that.
    generator = torch.Generator().manual_seed(samples)
    truth = confidence - accuracy
    intervals = [constant_stream(generator, samples, confidence, accuracy) for _ in range(RUNS)]
    covered = sum(holds(interval, truth) for interval in intervals) / RUNS
    assert covered >= 0.9, covered


def test_right_answers_alone_do_not_refute_calibration() -> None:
    low, high = constant_stream(torch.Generator(), 20, 0.95, accuracy=1)
    assert float(low) == 0 and float(high) > 0.06


def test_every_interval_holds_what_was_measured() -> None:
    for seed in range(20):
        logits, target, _ = calibrated_stream(seed, 2 + seed, sharpness=1 + seed % 5)
        certain = torch.nn.functional.one_hot(logits.argmax(dim=1), 4)
        # Rows may be off by the tolerance, and then values leave their limits.
        for probs in (logits.softmax(dim=1), certain * 1.009, certain * 0.991):
            for make in (
                metrics.Accuracy,
                metrics.ExpectedCalibrationError,
                metrics.BrierScore,
                metrics.NegativeLogLikelihood,
            ):
                metric = make()
                metric.update(probs=probs, target=target)
                for level in (0.01, 0.95):
                    low, high = metric.interval(level)
                    assert low <= metric.compute() <= high


def test_wilson_formula() -> None:
    metric = metrics.Accuracy()
    metric.update(probs=torch.eye(2)[[0] * 10], target=torch.tensor([0] * 8 + [1] * 2))
    low, high = metric.interval()
    # 8 of 10, as tables of the score interval give it.
    assert (float(low), float(high)) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    metric.reset()
    metric.update(probs=torch.eye(2)[[0] * 10], target=torch.zeros(10, dtype=torch.long))
    low, high = metric.interval()
    assert (float(low), float(high)) == pytest.approx((10 / (10 + 1.959964**2), 1), abs=1e-6)
    assert float(high) <= 1


def test_normal_formula() -> None:
    metric = metrics.Entropy()
    metric.update(probs=torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]], dtype=torch.float64))
    low, high = metric.interval(0.9)
    half = 1.644854 * (1 / 3) ** 0.5 / 3**0.5
    assert (float(low), float(high)) == pytest.approx((2 / 3 - half, 2 / 3 + half), abs=1e-6)


def test_equal_values_have_an_interval_of_no_width() -> None:
    metric = metrics.NegativeLogLikelihood()
    for _ in range(3):  # with 0.6, rounding leaves a variance below 0
        metric.update(probs=torch.tensor([[0.6, 0.4]]).repeat(1000, 1), target=torch.zeros(1000).long())
    low, high = metric.interval()
    assert float(low) == pytest.approx(float(high), abs=1e-6) == pytest.approx(0.510826, abs=1e-5)


def test_nothing_seen_has_no_interval() -> None:
    for metric in (
        metrics.Accuracy(),
        metrics.ExpectedCalibrationError(),
        metrics.NegativeLogLikelihood(),
        metrics.BrierScore(),
        metrics.Entropy(),
    ):
        low, high = metric.interval()
        assert bool(low.isnan()) and bool(high.isnan())


def test_one_sample_says_nothing_of_the_spread() -> None:
    metric = metrics.BrierScore()
    metric.update(probs=torch.tensor([[0.3, 0.7]]), target=torch.tensor([0]))
    assert bool(metric.interval()[0].isnan())


def test_bootstrap_repeats_and_leaves_random_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = ece_interval(0, 500, 2), ece_interval(0, 500, 2)
    assert first == second
    assert torch.equal(torch.rand(3), expected)


def test_level_widens() -> None:
    logits, target, _ = calibrated_stream(0, 500, sharpness=2)
    for metric in (metrics.Accuracy(), metrics.ExpectedCalibrationError(), metrics.BrierScore()):
        metric.update(logits=logits, target=target)
        narrow, wide = metric.interval(level=0.5), metric.interval(level=0.99)
        assert wide[0] < narrow[0] <= narrow[1] < wide[1]
        nearly_sure = metric.interval(level=math.nextafter(1, 0))
        assert nearly_sure[0] <= wide[0] < wide[1] <= nearly_sure[1]
        assert math.isfinite(nearly_sure[0]) and math.isfinite(nearly_sure[1])


@pytest.mark.parametrize("level", [0.0, 1.0, 95, "0.9", None, True, math.nan, torch.tensor(0.9)])
def test_refuses_levels(level: Any) -> None:
    for metric in (metrics.Accuracy(), metrics.ExpectedCalibrationError(), metrics.BrierScore()):
        with pytest.raises(OptionError, match="level to be a float strictly between 0 and 1"):
            metric.interval(level)


def test_brier_score_has_an_upper_limit() -> None:
    metric = metrics.BrierScore()
    metric.update(probs=torch.eye(2)[[0] * 5], target=torch.tensor([1, 1, 1, 1, 0]))
    assert float(metric.interval()[1]) == 2


def test_an_infinite_value_makes_both_ends_infinite() -> None:
    metric = metrics.NegativeLogLikelihood()
    metric.update(probs=torch.eye(2)[[0, 0, 0]], target=torch.tensor([0, 0, 1]))
    assert [float(end) for end in metric.interval()] == [math.inf, math.inf]


def test_interval_is_of_all_processes() -> None:
    logits, target, _ = calibrated_stream(0, 400, sharpness=2)
    for make in (metrics.Accuracy, metrics.ExpectedCalibrationError, metrics.NegativeLogLikelihood):
        synced = make(dist_sync_fn=gather_twice, distributed_available_fn=lambda: True)
        alone, twice = make(), make()
        for metric in (synced, alone, twice, twice):
            metric.update(logits=logits, target=target)
        assert synced.interval() == twice.interval() != alone.interval()
        assert torch.equal(synced.sums, alone.sums)  # back to this process's own


def test_no_interval_where_none_is_meaningful() -> None:
    for name in (
        "MaximumCalibrationError",
        "AdaptiveCalibrationError",
        "AreaUnderRiskCoverage",
        "ClasswiseCalibrationError",
    ):
        made = getattr(metrics, name)
        assert not hasattr(made, "interval") and "no interval" in made.__doc__
