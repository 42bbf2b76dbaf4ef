"""The inputs of the metrics, checked once: probabilities or logits by name, and integer labels.

A row that is NaN in every class is the answer of an adapter to a bad sample, and is left out with its label.
A row that no adapter returns is an error: NaN in some classes only, a maximum of ±inf, probabilities that are
negative or do not sum to 1.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from equipoise.errors import BatchTypeError, OptionError, UnknownOptionError

HALF_TYPES = (torch.float16, torch.bfloat16)
# As far as rows that were normalised in a half type may be off, also after they were widened.
ROW_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Scores:
    """Checked predictions of N samples over C classes, in float32 or float64, without gradients.

    Attributes:
        values: the predictions that are left, shape (N - skipped, C).
        are_logits: whether they are logits, or probabilities.
        rounding: the dtype the probabilities are rounded to, which a half type keeps after it was widened.
        kept: a mask of the rows that are left, shape (N,); None where all are.
    """

    values: Tensor
    are_logits: bool
    rounding: torch.dtype
    kept: Tensor | None = None

    @property
    def skipped(self) -> int:
        """The number of rows that were left out."""
        return 0 if self.kept is None else len(self.kept) - len(self.values)

    @property
    def probs(self) -> Tensor:
        """The probabilities, shape (N, C)."""
        return self.values.softmax(dim=1) if self.are_logits else self.values

    @property
    def log_probs(self) -> Tensor:
        """The natural logarithms of the probabilities, shape (N, C); -inf where a probability is 0."""
        return self.values.log_softmax(dim=1) if self.are_logits else self.values.log()

    @property
    def confidence(self) -> Tensor:
        """The largest probability of each sample, shape (N,)."""
        return self.probs.amax(dim=1)

    def correct(self, target: Tensor) -> Tensor:
        """1 where the predicted class is the label and 0 elsewhere, shape (N,), in the scores' dtype."""
        # Straight from what was given: distinct logits may become equal probabilities by rounding.
        return (self.values.argmax(dim=1) == target).to(self.values.dtype)


def check_scores(*, probs: Tensor | None, logits: Tensor | None) -> Scores:
    """Check that exactly one of the two is given and usable, and leave out rows of NaN.

    The predictions are detached, and half types widened to float32.
    """
    if probs is not None and logits is not None:
        raise OptionError("expected exactly one of probs= and logits=, got both")
    if logits is not None:
        rows, kept = _answered_rows("logits", logits)
        _check_logit_rows(rows)
        values = _widened(rows)
        return Scores(values, are_logits=True, rounding=values.dtype, kept=kept)
    if probs is not None:
        rows, kept = _answered_rows("probs", probs)
        _check_probability_rows(rows)
        return Scores(_widened(rows), are_logits=False, rounding=probs.dtype, kept=kept)
    raise OptionError("expected exactly one of probs= and logits=, got neither")


def check_target(target: Tensor, scores: Scores) -> Tensor:
    """Check that the labels are N integers in 0..C-1, and return those of the rows that are left as int64."""
    labels = check_classes(target, len(scores.values) + scores.skipped, scores.values.shape[1])
    return labels if scores.kept is None else labels[scores.kept.to(labels.device)]


def check_classes(target: Tensor, samples: int, classes: int) -> Tensor:
    """Check that the labels are as many integers in 0..classes-1 as samples, and return them as int64."""
    if not isinstance(target, Tensor):
        raise BatchTypeError(f"expected target to be a tensor, got {type(target).__name__}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise OptionError(f"expected target of an integer dtype, got {target.dtype}")
    if target.shape != (samples,):
        raise OptionError(f"expected target of shape ({samples},), got {tuple(target.shape)}")
    labels = target.long()
    if samples and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise OptionError(
            f"expected target values in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}"
        )
    return labels


def check_sets(sets: Tensor) -> Tensor:
    """Check that the sets are a boolean tensor of shape (N, C)."""
    if not isinstance(sets, Tensor):
        raise BatchTypeError(f"expected sets to be a tensor, got {type(sets).__name__}")
    if sets.dtype != torch.bool:
        raise OptionError(f"expected sets of booleans, as adapter.sets gives them, got {sets.dtype}")
    if sets.ndim != 2 or sets.shape[1] == 0:
        raise OptionError(f"expected sets of shape (N, C) with at least one class, got {tuple(sets.shape)}")
    return sets


def _widened(values: Tensor) -> Tensor:
    return values.float() if values.dtype in HALF_TYPES else values


def _answered_rows(name: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The rows that are not NaN in every class, detached, and a mask of them; None where all are such."""
    if not isinstance(values, Tensor):
        raise BatchTypeError(f"expected {name} to be a tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        raise OptionError(f"expected {name} of a floating dtype, got {values.dtype}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise OptionError(
            f"expected {name} of shape (N, C) with at least one class, got {tuple(values.shape)}"
        )
    nan = values.detach().isnan()
    if not bool(nan.any()):
        return values.detach(), None
    unanswered = nan.all(dim=1)
    if spoiled := int((nan.any(dim=1) & ~unanswered).sum()):
        raise OptionError(
            f"expected {name} without NaN, or rows of NaN alone, as adapters answer bad samples; got NaN in "
            f"some classes and not in others in {spoiled} of {len(values)} rows"
        )
    return values.detach()[~unanswered], ~unanswered


def _check_logit_rows(logits: Tensor) -> None:
    infinite_rows = int(logits.amax(dim=1).isinf().sum())
    if infinite_rows:
        raise OptionError(
            f"expected each row of logits to have a finite maximum, got {infinite_rows} rows "
            "with +inf or with nothing but -inf"
        )


def _check_probability_rows(probs: Tensor) -> None:
    # No entry below 0 and a sum of 1 also bound each entry by 1, to within the tolerance.
    negative_rows = int((probs < 0).any(dim=1).sum())
    if negative_rows:
        raise OptionError(
            f"expected probs in [0, 1], got a negative value in {negative_rows} of {len(probs)} rows; "
            "if these are logits, pass them as logits="
        )
    unnormalised_rows = int(((_widened(probs).sum(dim=1) - 1).abs() > ROW_SUM_TOLERANCE).sum())
    if unnormalised_rows:
        raise OptionError(
            f"expected each row of probs to lie in [0, 1] and sum to 1 (within {ROW_SUM_TOLERANCE:g}), "
            f"got other sums in {unnormalised_rows} of {len(probs)} rows; "
            "if these are logits, pass them as logits="
        )


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def by_name(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Raise an error that lists the keywords of a metric where an argument has none, or an unknown one.

    BatchTypeError for an argument by position, UnknownOptionError for an unknown keyword. Python's own errors
    would not say whether the first tensor was taken for probabilities or for logits.
    """
    keywords = keywords_of(function)
    positions = len(inspect.signature(function).parameters) - len(keywords)  # `self` of a method

    @wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if len(args) > positions:
            predictions = " or ".join(f"{name}=" for name in ("probs", "logits") if name in keywords)
            target = ", and target=" if "target" in keywords else ""
            raise BatchTypeError(
                f"{function.__name__}: expected predictions by name, {predictions}{target}, got "
                f"{len(args) - positions} of them by position"
            )
        if unknown := [name for name in kwargs if name not in keywords]:
            raise UnknownOptionError(
                f"{function.__name__} has no argument {_listed(unknown)}; it takes {_listed(keywords)}"
            )
        return function(*args, **kwargs)

    return checked


def keywords_of(function: Callable[..., object]) -> list[str]:
    """The names of the arguments that a function takes by name alone."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _listed(names: list[str]) -> str:
    return ", ".join(f"{name}=" for name in names)
