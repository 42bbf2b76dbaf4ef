"""Inputs of a request: checked, and turned into a tensor that the model takes."""

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.core.export import SourceModel
from equipoise.core.given import ACCURACIES_ASKED, COVERAGES_ASKED
from equipoise.errors import EquipoiseError
from equipoise.production.server.errors import InputError
from equipoise.production.server.interface import Asked

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""The names of streams: fit for files, URLs and the labels of metrics."""

_MOST_CHARACTERS = 200
_BRACKETS = "; one sample needs brackets around it, as a batch of one"


def check_name(stream: Any) -> str:
    """The name of a stream; InputError for one that does not match `NAME_PATTERN`."""
    if not isinstance(stream, str) or not re.fullmatch(NAME_PATTERN, stream):
        raise InputError(
            "expected the name of a stream as 1 to 64 letters, digits, dots, dashes and underscores that "
            f"begin with a letter or digit, got {str(stream)[:80]!a}"
        )
    return stream


def check_asked(asked: Asked, *, rehearsed: bool) -> None:
    """Raise InputError where a request asks for what no service, or none without a rehearsal, can give."""
    for name, (low, high) in (("coverage", COVERAGES_ASKED), ("accuracy", ACCURACIES_ASKED)):
        value = getattr(asked, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InputError(f"expected {name} as a number from {low:g} to {high:g}, got {value!r}")
        if not rehearsed:
            raise InputError(
                f"expected a request without {name}=: it needs a rehearsal of the method, and this service "
                "has none; run equipoise rehearse, and serve with --source and the file that it wrote"
            )


def takes_indices(model: nn.Module) -> bool:
    """Whether a model looks integers up in a table, so that they must stay integers."""
    return any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in model.modules())


def checked_inputs(inputs: Any, rows: int, *, indices: bool) -> Tensor:
    """A batch (N, …) as a tensor of its own; InputError says what is wrong with any other.

    Numbers become single precision, and integers stay integers where the model takes `indices`. A number too
    large for that is infinite, and its sample is set aside by the adapter.
    """
    array = np.asarray(inputs)
    if array.dtype.kind not in "fiub":
        raise InputError(f"expected inputs of numbers, got {array.dtype}")
    if array.ndim < 2:
        raise InputError(f"expected inputs of shape (N, …), got {array.shape}{_BRACKETS}")
    if not array.size:
        raise InputError(f"expected at least one sample, got inputs of shape {array.shape}")
    if len(array) > rows:
        raise InputError(f"expected at most {rows} samples in a request, got {len(array)}")
    kind = np.int64 if indices and array.dtype.kind in "iu" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.array(array, dtype=kind, order="C"))


def check_sample(inputs: Tensor, shape: tuple[int, ...], stream: str) -> None:
    """Raise InputError unless the samples have the shape of those that the stream had before."""
    came = tuple(inputs.shape[1:])
    if came != shape:
        raise InputError(
            f"expected samples of shape {shape} for the stream {stream!r}, got {came}: "
            f"{_how_to_send(tuple(inputs.shape), shape)}"
        )


class CheckedSource:
    """The source model of a service, which says what it takes where inputs do not fit it.

    Args:
        source: the model.
        shape: of the samples that its statistics were measured on; None where it is not known.
    """

    def __init__(self, source: SourceModel, shape: tuple[int, ...] | None) -> None:
        self._source, self._shape = source, shape

    def __call__(self, inputs: Tensor) -> Tensor:
        """The logits of inputs; InputError where the model fails on them."""
        try:
            logits = self._source(inputs)
        except torch.OutOfMemoryError:  # a RuntimeError, and none of the shape
            raise
        except (EquipoiseError, RuntimeError, ValueError, TypeError, LookupError) as error:
            raise InputError(_unfit(tuple(inputs.shape), self._shape, error)) from error
        self._shape = self._shape or tuple(inputs.shape[1:])
        return logits


def _unfit(came: tuple[int, ...], shape: tuple[int, ...] | None, error: Exception) -> str:
    """Why inputs of a shape cannot be answered, and what can be."""
    why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_MOST_CHARACTERS]}"
    if shape == came[1:]:
        return f"the model cannot answer these inputs: {why}"
    known = f"of shape {shape}, as the model took before" if shape else "of the shape that the model takes"
    return (
        f"expected samples {known}, got samples of shape {came[1:]} in inputs of shape {came}: "
        f"{_how_to_send(came, shape)} ({why})"
    )


def _how_to_send(came: tuple[int, ...], shape: tuple[int, ...] | None) -> str:
    """How to send samples of a shape, after inputs of another one."""
    brackets = _BRACKETS if came == shape else ""
    batch = ", ".join(["N", *map(str, shape or ("…",))])
    return f'send {{"inputs": [sample, …]}} or an npy array, of shape ({batch}){brackets}'


def check_labels(labels: Any, rows: int, classes: int) -> list[int]:
    """Labels as integers; InputError unless there is a class for each row."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) != rows:
        raise InputError(
            f"expected {rows} labels as integers, one for each row of the request, got {array.dtype} "
            f"of shape {array.shape}"
        )
    if not bool(((array >= 0) & (array < classes)).all()):
        raise InputError(f"expected labels from 0 to {classes - 1}, got {array.min()} to {array.max()}")
    return [int(label) for label in array]
