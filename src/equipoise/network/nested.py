"""Values in tuples and dicts, as the arguments of a call have them."""

from collections.abc import Callable
from typing import Any


def map_leaves(value: Any, function: Callable[[str, Any], Any], name: str = "") -> Any:
    """A value with function(name, leaf) in place of each leaf, in tuples and dicts as there are.

    The name of a leaf is its path, positions and keys: "0", "image" or "0.image".
    """
    if type(value) is tuple:
        return tuple(map_leaves(each, function, _path(name, str(at))) for at, each in enumerate(value))
    if isinstance(value, dict):
        return {key: map_leaves(each, function, _path(name, str(key))) for key, each in value.items()}
    return function(name, value)


def leaves(value: Any) -> dict[str, Any]:
    """The leaves of a value by their names, in order."""
    found: dict[str, Any] = {}
    map_leaves(value, found.__setitem__)
    return found


def _path(name: str, step: str) -> str:
    return f"{name}.{step}" if name else step
