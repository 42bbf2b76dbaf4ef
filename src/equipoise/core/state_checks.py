"""Checks of a state dict before it is loaded."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from equipoise.core.method import Memory
from equipoise.errors import StateError
from equipoise.network.named_tensors import part


def state_of(method: str, state: Any) -> dict[str, Any]:
    """The entries of a state dict without the name of the method; StateError if it is that of another."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise StateError(f"expected a state as a mapping of names to tensors, got {type(state).__name__}")
    if others := sorted({name.split(".")[0] for name in state} - {method}):
        raise StateError(f"expected the state of {method!r}, got that of {', '.join(others)}")
    return part(state, f"{method}.")


def check_state(expected: Memory, came: Mapping[str, Any], optional: tuple[str, ...]) -> None:
    """Raise StateError unless `came` has the names, shapes and types of `expected`, and finite values.

    Names that match a pattern in `optional` may be there or not, in any shape.
    """
    if missing := sorted(set(expected) - set(came)):
        raise StateError(f"the state lacks {_listed(missing)}; other options, another model, or damaged?")
    unknown = [n for n in came if n not in expected and not any(fnmatchcase(n, o) for o in optional)]
    if unknown:
        raise StateError(f"the state has unknown entries: {_listed(sorted(unknown))}")
    for name, value in came.items():
        if not isinstance(value, Tensor):
            raise StateError(f"{name}: expected a tensor, got {type(value).__name__}")
        like = expected.get(name, value)
        if value.shape != like.shape or value.dtype != like.dtype:
            raise StateError(f"{name}: expected {_described(like)}, got {_described(value)}")
        if not bool(value.isfinite().all()):
            raise StateError(f"{name}: expected finite values, got some that are not")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
