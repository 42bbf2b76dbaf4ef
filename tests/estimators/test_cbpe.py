import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from equipoise.estimators import CBPE, mean_confidence
from equipoise.estimators.confidence import Isotonic, isotonic
from tests.estimators import reference


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
