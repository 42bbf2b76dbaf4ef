"""What the metrics take, checked once: probabilities or logits by name, and integer labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import BatchTypeError, OptionError

HALF_TYPES = (torch.float16, torch.bfloat16)
# As far as rows that were normalised in a half type may be off, also after they were widened.
ROW_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Scores:
    """Checked predictions of N samples over C classes, in float32 or float64, without gradients.

    `rounding` is the dtype the probabilities are rounded to, which a half type keeps after it was widened.
    """

    values: Tensor
    are_logits: bool
    rounding: torch.dtype

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
    """Check that exactly one of the two is given and usable, detach it and widen half types to float32."""
    if probs is not None and logits is not None:
        raise OptionError("expected exactly one of probs= and logits=, got both")
    if logits is not None:
        _check_matrix("logits", logits)
        _check_logit_rows(logits)
        values = _widened(logits.detach())
        return Scores(values, are_logits=True, rounding=values.dtype)
    if probs is not None:
        _check_matrix("probs", probs)
        _check_probability_rows(probs)
        return Scores(_widened(probs.detach()), are_logits=False, rounding=probs.dtype)
    raise OptionError("expected exactly one of probs= and logits=, got neither")


def check_target(target: Tensor, scores: Scores) -> Tensor:
    """Check that the labels are N integers in 0..C-1 and give them as int64."""
    if not isinstance(target, Tensor):
        raise BatchTypeError(f"expected target to be a tensor, got {type(target).__name__}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise OptionError(f"expected target of an integer dtype, got {target.dtype}")
    samples, classes = scores.values.shape
    if target.shape != (samples,):
        raise OptionError(f"expected target of shape ({samples},), got {tuple(target.shape)}")
    labels = target.long()
    if samples and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise OptionError(
            f"expected target values in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}"
        )
    return labels


def check_bins(bins: int) -> int:
    """Check that the number of bins is a whole number of at least 1."""
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise OptionError(f"expected bins to be an int of at least 1, got {bins!r}")
    return bins


def _widened(values: Tensor) -> Tensor:
    return values.float() if values.dtype in HALF_TYPES else values


def _check_matrix(name: str, values: Tensor) -> None:
    if not isinstance(values, Tensor):
        raise BatchTypeError(f"expected {name} to be a tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        raise OptionError(f"expected {name} of a floating dtype, got {values.dtype}")
    if values.ndim != 2 or values.shape[1] == 0:
        raise OptionError(
            f"expected {name} of shape (N, C) with at least one class, got {tuple(values.shape)}"
        )
    nan_rows = int(values.isnan().any(dim=1).sum())
    if nan_rows:
        raise OptionError(
            f"expected {name} without NaN, got NaN in {nan_rows} of {len(values)} rows; "
            "rows that an adapter set aside come back NaN and must be dropped, with their labels"
        )


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
