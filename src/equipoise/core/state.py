"""Whether a state fits the adapter it is meant for."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from equipoise.errors import StateError


def check_state(
    method: str, expected: Mapping[str, Tensor], came: Any, arriving: tuple[str, ...] = ()
) -> None:
    """Raise StateError unless `came` has the names, shapes and types of `expected`, and finite values.

    Every name starts with that of the method whose state it is. Names that match a pattern in `arriving`
    belong to tensors that come with the first batch: they may be there or not, in any shape.
    """
    if not isinstance(came, Mapping) or not all(isinstance(name, str) for name in came):
        raise StateError(f"expected a state as a mapping of names to tensors, got {type(came).__name__}")
    others = sorted({name.split(".")[0] for name in came} - {method})
    if others:
        raise StateError(f"expected the state of {method!r}, got that of {', '.join(others)}")
    fixed = {name for name in expected if not _matches(name, arriving)}
    if missing := sorted(fixed - set(came)):
        raise StateError(f"the state lacks {_listed(missing)}; other options, another model, or damaged?")
    if surplus := sorted(name for name in set(came) - fixed if not _matches(name, arriving)):
        raise StateError(f"the state has unknown entries: {_listed(surplus)}")
    for name, value in came.items():
        if not isinstance(value, Tensor):
            raise StateError(f"{name}: expected a tensor, got {type(value).__name__}")
        like = expected[name] if name in fixed else value
        if value.shape != like.shape or value.dtype != like.dtype:
            raise StateError(f"{name}: expected {_told(like)}, got {_told(value)}")
        if not bool(value.isfinite().all()):
            raise StateError(f"{name}: expected finite values, got some that are not")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _told(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
