"""Whether a state fits the adapter it is meant for."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equipoise.errors import StateError


def check_state(method: str, expected: Mapping[str, Tensor], came: Mapping[str, Any]) -> None:
    """Raise StateError unless `came` has the names, shapes and types of `expected`, and finite values.

    Every name starts with that of the method whose state it is.
    """
    others = sorted({name.split(".")[0] for name in came} - {method})
    if others:
        raise StateError(f"expected the state of {method!r}, got that of {', '.join(others)}")
    if missing := sorted(set(expected) - set(came)):
        raise StateError(f"the state lacks {_listed(missing)}; other options, another model, or damaged?")
    if surplus := sorted(set(came) - set(expected)):
        raise StateError(f"the state has unknown entries: {_listed(surplus)}")
    for name, tensor in expected.items():
        value = came[name]
        if not isinstance(value, Tensor) or value.shape != tensor.shape or value.dtype != tensor.dtype:
            what = (
                f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            )
            raise StateError(f"{name}: expected {tensor.dtype} {tuple(tensor.shape)}, got {what}")
        if not bool(value.isfinite().all()):
            raise StateError(f"{name}: expected finite values, got some that are not")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
