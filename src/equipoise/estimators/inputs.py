"""The inputs of the estimators, checked by the rules of `equipoise.metrics`, and their results."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.errors import BatchTypeError, OptionError
from equipoise.metrics.bins import widest_dtype
from equipoise.metrics.inputs import Scores, check_scores, check_target

Doubles: TypeAlias = npt.NDArray[np.float64]


def held_out(logits: Tensor, target: Tensor) -> tuple[Scores, Tensor]:
    """The checked predictions and labels that an estimator is fitted on; OptionError where there are none."""
    scores = check_scores(probs=None, logits=logits)
    labels = check_target(target, scores)
    if not len(labels):
        raise OptionError("expected at least one labelled sample to fit on, got none")
    return scores, labels


def stream(logits: Tensor, classes: int | None = None) -> Scores:
    """The checked predictions whose accuracy is estimated; OptionError unless they have that many classes."""
    scores = check_scores(probs=None, logits=logits)
    if classes is not None and scores.values.shape[1] != classes:
        raise OptionError(
            f"expected logits of the {classes} classes that the estimator was fitted on, got "
            f"{scores.values.shape[1]}"
        )
    return scores


def further_answers(name: str, logits: Tensor, scores: Scores) -> Tensor:
    """Checked (K, N, C) logits of K further answers to the samples of the scores, without those left out."""
    if not isinstance(logits, Tensor):
        raise BatchTypeError(f"expected {name} to be a tensor, got {type(logits).__name__}")
    samples, classes = len(scores.values) + scores.skipped, scores.values.shape[1]
    if logits.ndim != 3 or not len(logits) or logits.shape[1:] != (samples, classes):
        raise OptionError(
            f"expected {name} of shape (K, {samples}, {classes}) with at least one draw, got "
            f"{tuple(logits.shape)}"
        )
    left = logits if scores.kept is None else logits[:, scores.kept.to(logits.device)]
    checked = check_scores(probs=None, logits=left.flatten(0, 1))
    if checked.skipped:
        raise OptionError(
            f"expected {name} without NaN where the logits have none, got {checked.skipped} rows of NaN"
        )
    draws: Tensor = wide(checked).unflatten(0, left.shape[:2])
    return draws


def wide(scores: Scores) -> Tensor:
    """The logits in the dtype to add up in."""
    return scores.values.to(widest_dtype(scores.values.device))


def result(value: Tensor | float, scores: Scores) -> Tensor:
    """A single number in the dtype and on the device of the predictions."""
    return torch.as_tensor(value, dtype=scores.values.dtype, device=scores.values.device)
