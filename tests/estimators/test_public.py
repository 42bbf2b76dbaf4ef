"""What all estimators have in common: examples, names of arguments, dtypes, bad rows, and errors."""

import doctest
import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import estimators
from equipoise.errors import BatchTypeError, OptionError, UnknownOptionError
from tests.estimators import reference

CLASSES = 4
HELD_OUT, LABELS = reference.predictions(0, 60, CLASSES)
LATER, _ = reference.predictions(1, 25, CLASSES)
FITTED: dict[str, Any] = {
    "TemperatureScaledConfidence": estimators.TemperatureScaledConfidence,
    "ATC": estimators.ATC,
    "COT": estimators.COT,
    "CBPE": estimators.CBPE,
}
ESTIMATES: dict[str, Callable[..., Tensor]] = {
    **{name: one.fit(logits=HELD_OUT, target=LABELS).accuracy for name, one in FITTED.items()},
    "mean_confidence": estimators.mean_confidence,
    "nuclear_norm": estimators.nuclear_norm,
    "NuclearNorm": estimators.NuclearNorm(0.7, 0.1).accuracy,
    "aetta": lambda *, logits: estimators.aetta(logits=logits, dropout_logits=logits.flip(1)[None]),
    "sicl": lambda *, logits: estimators.sicl(logits=logits, style_logits=logits.flip(1)[None]),
}
LOGITS_ALONE = [name for name in ESTIMATES if name not in ("aetta", "sicl")]
MODULES = ["confidence", "further_answers", "probability_matrix"]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    loaded = importlib.import_module(f"equipoise.estimators.{module}")
    results = doctest.testmod(loaded, extraglobs={"torch": torch})
    assert results.attempted and not results.failed


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_public_name_has_an_example_and_says_how_it_deviates(name: str) -> None:
    text = inspect.getdoc(getattr(estimators, name)) or ""
    assert ">>> " in text
    assert "Deviations: " in text or name in ("mean_confidence", "TemperatureScaledConfidence")


def test_is_in_the_package() -> None:
    assert eq.estimators is estimators


@pytest.mark.parametrize("name", ESTIMATES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_estimates_are_numbers_in_the_dtype_of_the_predictions(name: str, dtype: torch.dtype) -> None:
    got = ESTIMATES[name](logits=LATER.to(dtype).requires_grad_())
    assert got.shape == () and not got.requires_grad
    assert got.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert 0 <= float(got) <= 1
    assert float(got) == pytest.approx(float(ESTIMATES[name](logits=LATER)), abs=0.05)


@pytest.mark.parametrize("name", ESTIMATES)
def test_one_sample_of_two_classes(name: str) -> None:
    logits = torch.tensor([[3.0, 0.0]])
    if name in FITTED:
        fitted = FITTED[name].fit(logits=torch.tensor([[1.0, 0.0]]), target=torch.tensor([0]))
        assert 0 <= float(fitted.accuracy(logits=logits)) <= 1
    else:
        assert 0 <= float(ESTIMATES[name](logits=logits)) <= 1


@pytest.mark.parametrize("name", ESTIMATES)
def test_no_samples_give_nan(name: str) -> None:
    assert math.isnan(float(ESTIMATES[name](logits=LATER[:0])))


@pytest.mark.parametrize("name", ESTIMATES)
def test_rows_of_nan_are_left_out(name: str) -> None:
    holes = torch.cat([LATER, torch.full((2, CLASSES), math.nan)])
    assert float(ESTIMATES[name](logits=holes)) == pytest.approx(float(ESTIMATES[name](logits=LATER)))


@pytest.mark.parametrize("name", FITTED)
def test_rows_of_nan_are_left_out_of_held_out_data(name: str) -> None:
    holes = torch.cat([torch.full((2, CLASSES), math.nan), HELD_OUT])
    fitted = FITTED[name].fit(logits=holes, target=torch.cat([torch.tensor([0, 1]), LABELS]))
    assert float(fitted.accuracy(logits=LATER)) == pytest.approx(float(ESTIMATES[name](logits=LATER)))


@pytest.mark.parametrize("name", ESTIMATES)
@pytest.mark.parametrize(("value", "match"), [(math.nan, "without NaN"), (math.inf, "finite maximum")])
def test_values_that_are_not_finite_are_errors(name: str, value: float, match: str) -> None:
    bad = LATER.clone()
    bad[3, 1] = value
    with pytest.raises(OptionError, match=match):
        ESTIMATES[name](logits=bad)
    if name in FITTED:
        with pytest.raises(OptionError, match=match):
            FITTED[name].fit(logits=bad, target=LABELS[:25])


@pytest.mark.parametrize("name", FITTED)
def test_labels_fit_the_logits(name: str) -> None:
    fit = FITTED[name].fit
    with pytest.raises(OptionError, match=r"target of shape \(60,\), got \(59,\)"):
        fit(logits=HELD_OUT, target=LABELS[1:])
    with pytest.raises(OptionError, match=r"target values in 0\.\.3, got 0\.\.4"):
        fit(logits=HELD_OUT, target=torch.arange(60) % 5)
    with pytest.raises(OptionError, match="at least one labelled sample"):
        fit(logits=HELD_OUT[:0], target=LABELS[:0])
    with pytest.raises(OptionError, match="at least one labelled sample"):
        estimators.fit_temperature(logits=HELD_OUT[:0], target=LABELS[:0])


@pytest.mark.parametrize("name", ["COT", "CBPE"])
def test_a_stream_has_the_classes_of_the_held_out_data(name: str) -> None:
    with pytest.raises(OptionError, match="the 4 classes that the estimator was fitted on, got 3"):
        ESTIMATES[name](logits=LATER[:, 1:])


@pytest.mark.parametrize("name", FITTED)
def test_a_class_that_never_appears(name: str) -> None:
    rows = LABELS != 2
    fitted = FITTED[name].fit(logits=HELD_OUT[rows], target=LABELS[rows])
    assert 0 <= float(fitted.accuracy(logits=LATER)) <= 1


@pytest.mark.parametrize("name", LOGITS_ALONE)
def test_arguments_have_names(name: str) -> None:
    with pytest.raises(BatchTypeError, match=r"expected predictions by name, logits=, got 1 of them"):
        ESTIMATES[name](LATER)
    with pytest.raises(UnknownOptionError, match=r"no argument probs=; it takes logits="):
        ESTIMATES[name](probs=LATER.softmax(1))


@pytest.mark.parametrize("name", FITTED)
def test_held_out_data_have_names(name: str) -> None:
    with pytest.raises(BatchTypeError, match=r"by name, logits=, and target=, got 2 of them"):
        FITTED[name].fit(HELD_OUT, LABELS)


def test_nothing_draws_random_numbers() -> None:
    state = torch.get_rng_state()
    for name, estimate in ESTIMATES.items():
        estimate(logits=LATER)
        if name in FITTED:
            FITTED[name].fit(logits=HELD_OUT, target=LABELS)
    assert torch.equal(torch.get_rng_state(), state)
