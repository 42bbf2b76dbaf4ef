"""Estimates from confidence: against formulas written as loops, and sklearn's isotonic regression."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.estimators import ATC, CBPE, TemperatureScaledConfidence, fit_temperature, mean_confidence
from equipoise.estimators.confidence import Isotonic, isotonic
from tests.estimators import reference

SCORES = ["entropy", "confidence"]


@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (7, 3), (200, 10)])
def test_mean_confidence_is_its_formula(samples: int, classes: int) -> None:
    logits, _ = reference.predictions(0, samples, classes)
    assert float(mean_confidence(logits=logits)) == pytest.approx(
        reference.mean_confidence(logits), rel=1e-12
    )


@pytest.mark.parametrize("scale", [0.3, 0.9, 2.0, 30.0])
def test_the_temperature_has_the_lowest_nll(scale: float) -> None:
    logits, labels = reference.predictions(1, 400, 5)
    found = float(fit_temperature(logits=scale * logits, target=labels))
    assert (found < 1) == (scale < 0.5)  # the labels were drawn at T = 2
    best = reference.nll(scale * logits, labels, found)
    for other in (0.9 * found, 0.999 * found, 1.001 * found, 1.1 * found):
        assert reference.nll(scale * logits, labels, other) > best


def test_the_temperature_follows_the_scale_of_the_logits() -> None:
    logits, labels = reference.predictions(1, 400, 5)
    once, twice = (float(fit_temperature(logits=k * logits, target=labels)) for k in (1, 2))
    assert twice == pytest.approx(2 * once, rel=1e-9)


def test_the_temperature_stays_in_its_range() -> None:
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert float(fit_temperature(logits=logits, target=torch.tensor([0, 1]))) == pytest.approx(0.05)
    assert float(fit_temperature(logits=logits, target=torch.tensor([1, 0]))) == pytest.approx(1e4)


def test_classes_that_cannot_be_weigh_nothing_in_the_temperature() -> None:
    logits, labels = reference.predictions(1, 50, 3)
    wider = torch.cat([logits, torch.full((50, 1), -math.inf, dtype=torch.float64)], dim=1)
    assert fit_temperature(logits=wider, target=labels) == fit_temperature(logits=logits, target=labels)
    with pytest.raises(OptionError, match="-inf at 50 of 50"):
        fit_temperature(logits=wider, target=torch.full((50,), 3))


def test_temperature_scaled_confidence_is_its_formula() -> None:
    logits, labels = reference.predictions(2, 100, 4)
    later, _ = reference.predictions(3, 30, 4)
    fitted = TemperatureScaledConfidence.fit(logits=logits, target=labels)
    expected = reference.mean_confidence(later, fitted.temperature)
    assert float(fitted.accuracy(logits=later)) == pytest.approx(expected, rel=1e-9)
    assert fitted.temperature == float(fit_temperature(logits=logits, target=labels))
    assert float(fitted.accuracy(logits=logits)) == pytest.approx(
        float((logits.argmax(1) == labels).double().mean()), abs=0.05
    )


@pytest.mark.parametrize("temperature", [0, -1, math.nan, "2"])
def test_a_temperature_is_a_positive_number(temperature: float) -> None:
    with pytest.raises(OptionError, match="temperature"):
        TemperatureScaledConfidence(temperature)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (9, 2), (150, 6)])
def test_atc_is_its_formula(score: str, samples: int, classes: int) -> None:
    logits, labels = reference.predictions(4, samples, classes)
    later, _ = reference.predictions(5, 40, classes)
    fitted = ATC.fit(logits=logits, target=labels, score=score)
    wrong = sum(reference.class_of(row) != y for row, y in zip(logits.tolist(), labels.tolist(), strict=True))
    below = sum(s < fitted.threshold - 1e-12 for s in reference.scores(logits, score))
    assert below == wrong  # the definition of the threshold
    share = sum(s >= fitted.threshold for s in reference.scores(later, score)) / 40
    assert float(fitted.accuracy(logits=later)) == pytest.approx(share)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_atc_of_held_out_data_that_are_all_right_or_all_wrong(score: str, right: float) -> None:
    logits, _ = reference.predictions(6, 20, 3)
    labels = logits.argmax(1) if right else logits.argmin(1)
    fitted = ATC.fit(logits=logits, target=labels, score=score)
    assert float(fitted.accuracy(logits=logits)) == right


def test_atc_counts_equal_scores_on_one_side() -> None:
    logits = torch.tensor([[2.0, 0.0]]).repeat(4, 1)
    fitted = ATC.fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
    assert float(fitted.accuracy(logits=logits)) == 1


def test_atc_knows_two_scores() -> None:
    with pytest.raises(OptionError, match="score as one of entropy, confidence"):
        ATC(0.5, "margin")
    logits, labels = reference.predictions(0, 5, 2)
    with pytest.raises(OptionError, match="score as one of entropy, confidence"):
        ATC.fit(logits=logits, target=labels, score="margin")


def test_atc_of_sure_float32_answers_resolves_them() -> None:
    # In float32 both have a confidence of 1.
    logits = torch.tensor([[20.0, 0.0], [30.0, 0.0]])
    fitted = ATC.fit(logits=logits, target=torch.tensor([1, 0]), score="confidence")
    got: Tensor = fitted.accuracy(logits=logits)
    assert float(got) == 0.5 and got.dtype == torch.float32


def calibrated_confidence(
    held_out: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], later: npt.NDArray[np.float64]
) -> float:
    """One isotonic regression of sklearn's for each class, normalised; the mean at the predicted class."""
    table = np.zeros_like(later)
    for c in range(later.shape[1]):
        curve = IsotonicRegression(out_of_bounds="clip", increasing=True)
        curve.fit(held_out[:, c], (labels == c).astype(float))
        table[:, c] = curve.predict(later[:, c])
    total = 0.0
    for row, p in zip(table, later, strict=True):
        total += 1 / len(row) if row.sum() == 0 else row[p.argmax()] / row.sum()
    return total / len(later)


@pytest.mark.parametrize(("samples", "classes"), [(30, 2), (400, 2), (300, 5)])
@pytest.mark.parametrize("decimals", [1, 12])  # with many equal probabilities, and without
def test_is_one_isotonic_regression_for_each_class(samples: int, classes: int, decimals: int) -> None:
    logits, labels = reference.predictions(0, samples, classes)
    later, _ = reference.predictions(1, 80, classes, scale=5.0)
    logits, later = logits.round(decimals=decimals), later.round(decimals=decimals)
    fitted = CBPE.fit(logits=logits, target=labels)
    probs, others = logits.softmax(1).numpy(), later.softmax(1).numpy()
    expected = calibrated_confidence(probs, labels.numpy(), others)
    assert float(fitted.accuracy(logits=later)) == pytest.approx(expected, rel=1e-9)


def test_for_two_classes_is_the_calibration_of_one() -> None:
    logits, labels = reference.predictions(2, 300, 2)
    later, _ = reference.predictions(3, 50, 2)
    curve = IsotonicRegression(out_of_bounds="clip").fit(logits.softmax(1)[:, 1].numpy(), labels.numpy())
    positive = curve.predict(later.softmax(1)[:, 1].numpy())
    expected = np.where(later.argmax(1).numpy() == 1, positive, 1 - positive).mean()
    got = CBPE.fit(logits=logits, target=labels).accuracy(logits=later)
    assert float(got) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("samples", [1, 2, 50, 500])
@pytest.mark.parametrize("levels", [3, 10_000])
def test_isotonic_regression_is_that_of_sklearn(samples: int, levels: int) -> None:
    rng = np.random.default_rng(samples)
    inputs = rng.integers(levels, size=samples) / levels
    outputs = (rng.random(samples) < inputs).astype(float)
    at = np.linspace(-0.2, 1.2, 301)
    expected = IsotonicRegression(out_of_bounds="clip").fit(inputs, outputs).predict(at)
    assert isotonic(inputs, outputs)(at) == pytest.approx(expected, abs=1e-7)  # inputs are rounded


def test_held_out_data_get_their_accuracy() -> None:
    logits, labels = reference.predictions(4, 2000, 2)
    fitted = CBPE.fit(logits=logits, target=labels)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    assert float(fitted.accuracy(logits=logits)) == pytest.approx(accuracy, abs=0.01)
    assert abs(float(mean_confidence(logits=logits)) - accuracy) > 0.05


def test_a_class_without_held_out_samples_keeps_its_probability() -> None:
    logits, labels = reference.predictions(5, 100, 3)
    present = labels != 1
    fitted = CBPE.fit(logits=logits[present], target=labels[present])
    values = np.array([0.0, 0.3, 1.0])
    assert fitted.calibration[1](values).tolist() == values.tolist()
    assert fitted.calibration[0](values).tolist() != values.tolist()
    alone = CBPE.fit(logits=logits, target=torch.zeros(100, dtype=torch.long))
    assert float(alone.accuracy(logits=logits)) == pytest.approx(float(mean_confidence(logits=logits)))


def test_one_held_out_sample_and_one_later() -> None:
    fitted = CBPE.fit(logits=torch.tensor([[2.0, 0.0]]), target=torch.tensor([0]))
    assert float(fitted.accuracy(logits=torch.tensor([[0.9, 0.1]]).log())) == pytest.approx(0.9)


def test_answers_that_no_class_explains_are_uniform() -> None:
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6]]).log()
    nothing = Isotonic(np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    assert float(CBPE((nothing, nothing)).accuracy(logits=logits)) == 0.5


def test_probabilities_that_differ_by_rounding_are_equal() -> None:
    logits = torch.tensor([[1.0, 0.3], [2.3, 1.6]], dtype=torch.float64)
    first, second = logits.softmax(1)[:, 0].tolist()
    assert 0 < abs(first - second) < 1e-15  # or the test tests nothing
    fitted = CBPE.fit(logits=logits, target=torch.tensor([0, 1]))
    assert float(fitted.accuracy(logits=logits[:1])) == float(fitted.accuracy(logits=logits[1:])) == 0.5
