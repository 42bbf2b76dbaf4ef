"""The logits in a model's output."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from equipoise.errors import ModelError

OutputsFunction: TypeAlias = Callable[[Any], Tensor]
"""Picks the (N, C) logits out of a model's output: `lambda out: out["logits"]`."""


def logits_of(output: Any, outputs: OutputsFunction | None = None) -> Tensor:
    """The logits in a model's output: by `outputs`, else a tensor itself, or the `.logits` of an object."""
    if outputs is not None:
        return _picked(output, outputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"expected the model to return logits as a tensor or an object with .logits, "
            f"got {_described(output)}{_cure(output)}"
        )
    return logits


def checked_logits(
    output: Any, rows: int, classes: int | None = None, outputs: OutputsFunction | None = None
) -> Tensor:
    """The (N, C) logits in a model's output, C ≥ 2 and equal to `classes` where that is known."""
    logits = logits_of(output, outputs)
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        raise ModelError(
            f"expected the model to return floating-point logits of shape (N, C) with N = {rows}, "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if logits.shape[1] < 2:
        raise ModelError(
            "expected logits of at least 2 classes, got 1; a binary classifier with one output z is "
            "the two-class classifier with logits (0, z)"
        )
    if classes is not None and logits.shape[1] != classes:
        raise ModelError(f"expected {classes} classes as in the source statistics, got {logits.shape[1]}")
    return logits


def _picked(output: Any, outputs: OutputsFunction) -> Tensor:
    try:
        logits: Any = outputs(output)
    except (AttributeError, LookupError, TypeError) as error:
        raise ModelError(
            f"outputs= failed on {_described(output)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(logits, Tensor):
        raise ModelError(f"expected outputs= to return the logits as a tensor, got {_described(logits)}")
    return logits


def _described(output: Any) -> str:
    """The kind of an output, with the names of its entries or their number."""
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join(str(name) for name in output) or 'no entries'}"
    return f"{kind} of {len(output)}" if isinstance(output, (tuple, list)) else kind


def _cure(output: Any) -> str:
    """The argument that picks the logits out of a dict or a tuple: the entry of that name, or the first."""
    entries = output if isinstance(output, Mapping) else {}
    if isinstance(output, (tuple, list)):
        entries = dict(enumerate(output))
    tables = [name for name, value in entries.items() if isinstance(value, Tensor) and value.ndim == 2]
    if not tables:
        return ""
    entry = "logits" if "logits" in tables else tables[0]
    return f": say where the logits are, with outputs=lambda out: out[{entry!r}] for example"
