import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import metrics
from equipoise.errors import BatchTypeError, OptionError, UnknownOptionError

TARGET = torch.tensor([0, 1])
PROBS = torch.tensor([[0.9, 0.1], [0.4, 0.6]])

FUNCTIONS: list[Callable[..., object]] = [
    metrics.accuracy,
    metrics.expected_calibration_error,
    metrics.maximum_calibration_error,
    metrics.adaptive_calibration_error,
    metrics.area_under_risk_coverage,
    metrics.risk_coverage,
    metrics.classwise_calibration_error,
    metrics.negative_log_likelihood,
    metrics.brier_score,
    metrics.reliability_bins,
]

BAD_SCORES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, OptionError, "exactly one of probs= and logits=, got neither"),
    ({"probs": PROBS, "logits": PROBS}, OptionError, "got both"),
    ({"probs": np.ones((2, 1))}, BatchTypeError, "probs to be a tensor, got ndarray"),
    ({"logits": [[0.0, 1.0]]}, BatchTypeError, "logits to be a tensor, got list"),
    ({"logits": torch.zeros(2, 2, dtype=torch.long)}, OptionError, "floating dtype, got torch.int64"),
    ({"logits": torch.zeros(2)}, OptionError, r"shape \(N, C\).*got \(2,\)"),
    ({"probs": torch.zeros(2, 2, 1)}, OptionError, r"got \(2, 2, 1\)"),
    ({"logits": torch.zeros(2, 0)}, OptionError, r"at least one class, got \(2, 0\)"),
    (
        {"logits": torch.tensor([[0.0, math.nan], [0.0, 1.0]])},
        OptionError,
        "NaN in some classes and not in others in 1 of 2 rows",
    ),
    ({"logits": torch.tensor([[0.0, math.inf], [0.0, 1.0]])}, OptionError, "finite maximum, got 1 rows"),
    ({"logits": torch.full((2, 2), -math.inf)}, OptionError, "finite maximum, got 2 rows"),
    ({"probs": torch.tensor([[1.1, -0.1], [0.5, 0.5]])}, OptionError, "negative value in 1 of 2.*logits="),
    ({"probs": torch.tensor([[2.0, 0.0], [0.5, 0.5]])}, OptionError, "other sums in 1 of 2.*logits="),
    ({"probs": torch.tensor([[0.52, 0.5], [0.5, 0.5]])}, OptionError, r"within 0.01\).*1 of 2"),
    ({"probs": torch.tensor([[0.52, 0.5]] * 2).half()}, OptionError, r"within 0.01.*2 of 2"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD_SCORES)
def test_refuses_predictions(given: dict[str, Any], error: type[Exception], message: str) -> None:
    for function in FUNCTIONS:
        with pytest.raises(error, match=message):
            function(**given, target=TARGET)
    with pytest.raises(error, match=message):
        metrics.entropy(**given)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ([0, 1], BatchTypeError, "target to be a tensor, got list"),
        (torch.tensor([0.0, 1.0]), OptionError, "integer dtype, got torch.float32"),
        (torch.tensor([False, True]), OptionError, "integer dtype, got torch.bool"),
        (torch.tensor([0]), OptionError, r"shape \(2,\), got \(1,\)"),
        (torch.tensor([[0], [1]]), OptionError, r"shape \(2,\), got \(2, 1\)"),
        (torch.tensor([0, 2]), OptionError, r"values in 0\.\.1, got 0\.\.2"),
        (torch.tensor([-1, 1]), OptionError, r"values in 0\.\.1, got -1\.\.1"),
    ],
)
def test_refuses_targets(target: Any, error: type[Exception], message: str) -> None:
    for function in FUNCTIONS:
        with pytest.raises(error, match=message):
            function(probs=PROBS, target=target)


@pytest.mark.parametrize("bins", [0, -3, 2.5, True, "15"])
def test_refuses_bins(bins: Any) -> None:
    with_bins: list[Callable[..., object]] = [
        metrics.expected_calibration_error,
        metrics.maximum_calibration_error,
        metrics.adaptive_calibration_error,
        metrics.classwise_calibration_error,
        metrics.reliability_bins,
    ]
    for function in with_bins:
        with pytest.raises(OptionError, match=r"expected bins"):
            function(probs=PROBS, target=TARGET, bins=bins)
    for make in (metrics.ExpectedCalibrationError, metrics.AdaptiveCalibrationError):
        with pytest.raises(OptionError, match=r"expected bins"):
            make(bins=bins)
    with pytest.raises(OptionError, match=r"expected num_classes"):
        metrics.ClasswiseCalibrationError(num_classes=bins)


def test_logits_are_never_taken_for_probabilities() -> None:
    # These logits look like probabilities; named logits, they are softmaxed.
    looks_alike = torch.tensor([[0.9, 0.1]])
    expected = float(torch.tensor([0.9, 0.1]).softmax(dim=0)[0])
    got = metrics.reliability_bins(logits=looks_alike, target=torch.tensor([0]), bins=1)
    assert float(got.confidence) == pytest.approx(expected)


def test_rounding_within_the_tolerance_passes() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        metrics.accuracy(probs=torch.tensor([[0.504, 0.5], [0.5, 0.5]], dtype=dtype), target=TARGET)


def test_probabilities_that_were_once_half_pass() -> None:
    logits = torch.randn(1000, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    probs = logits.softmax(dim=1).float()
    assert float((probs.sum(dim=1) - 1).abs().max()) > 1e-3
    metrics.entropy(probs=probs)


def test_arguments_have_names() -> None:
    for function in FUNCTIONS:
        name = getattr(function, "__name__", "")
        with pytest.raises(BatchTypeError, match=f"{name}.*probs= or logits=, and target=, got 2 .*position"):
            function(PROBS, TARGET)
    with_target: list[Callable[..., object]] = [
        metrics.Accuracy().update,
        metrics.Accuracy(),
        metrics.Summary().update,
        metrics.Window(metrics.Accuracy(), 2).update,
    ]
    for add in with_target:
        with pytest.raises(BatchTypeError, match=r"update.*probs= or logits=, and target=, got 2 .*position"):
            add(PROBS, TARGET)
    without: list[Callable[..., object]] = [metrics.entropy, metrics.Entropy().update]
    for add in without:
        with pytest.raises(BatchTypeError, match=r"probs= or logits=, got 1 .*position"):
            add(PROBS)


def test_an_unknown_argument_gets_the_known_ones() -> None:
    ece: Callable[..., object] = metrics.expected_calibration_error
    with pytest.raises(UnknownOptionError, match=r"no argument n_bins=; it takes probs=, .*target=, bins="):
        ece(probs=PROBS, target=TARGET, n_bins=10)
    add: Callable[..., object] = metrics.Accuracy().update
    with pytest.raises(UnknownOptionError, match=r"update has no argument preds=; it takes probs=, logits="):
        add(preds=PROBS, target=TARGET)
    make: Callable[..., object]
    for make in (metrics.ExpectedCalibrationError, metrics.AdaptiveCalibrationError, metrics.Summary):
        with pytest.raises(OptionError, match=r"Unexpected keyword arguments: `n_bins`; its own .*: bins=,"):
            make(n_bins=10)
    with pytest.raises(OptionError, match=r"Unexpected keyword arguments: `task`; its own arguments: none"):
        metrics.Accuracy(task="multiclass")


NAN_ROWS = torch.tensor([[math.nan, math.nan], [0.9, 0.1], [math.nan, math.nan], [0.4, 0.6]])
LABELS = torch.tensor([1, 0, 0, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("given", ["probs", "logits"])
def test_rows_that_an_adapter_set_aside_are_left_out(given: str, dtype: torch.dtype) -> None:
    rows = NAN_ROWS.to(dtype)
    kept = ~rows.isnan().all(dim=1)
    for function in FUNCTIONS:
        got = function(**{given: rows}, target=LABELS)
        alone = function(**{given: rows[kept]}, target=LABELS[kept])
        torch.testing.assert_close(_values(got), _values(alone), rtol=0, atol=0, equal_nan=True)
    entropy: Callable[..., object] = metrics.entropy
    assert entropy(**{given: rows}) == entropy(**{given: rows[kept]})


def test_nothing_but_rows_set_aside_is_nan() -> None:
    nothing = torch.full((2, 2), math.nan)
    for function in FUNCTIONS:
        values = _values(function(logits=nothing, target=TARGET))
        assert all(
            bool(value.isnan().all())
            for name, value in values.items()
            if name not in ("lower", "upper", "count")
        )
    assert bool(metrics.entropy(probs=nothing).isnan())


def test_labels_of_rows_set_aside_are_checked_as_well() -> None:
    with pytest.raises(OptionError, match=r"shape \(4,\), got \(2,\)"):
        metrics.accuracy(probs=NAN_ROWS, target=LABELS[:2])
    with pytest.raises(OptionError, match=r"values in 0\.\.1, got 0\.\.7"):
        metrics.accuracy(probs=NAN_ROWS, target=torch.tensor([7, 0, 0, 1]))


def _values(result: object) -> dict[str, torch.Tensor]:
    return {"value": result} if isinstance(result, torch.Tensor) else dict(vars(result))
