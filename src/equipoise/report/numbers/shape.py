"""Whether a value read from JSON has the shape that a TypedDict declares."""

from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_Check = Callable[[object], bool]

LARGEST = 1e100
"""What is larger is no score and no count: sums and squares of it would not be finite."""


@cache
def checker(shape: Any) -> _Check:
    """A function that says whether a JSON value is what a type says, made once since files are long.

    Types are TypedDict, Literal, unions, lists, dicts and plain ones. An int is a float, a bool is neither,
    and no number is beyond `LARGEST`; a TypedDict may have more fields than it declares, not fewer.
    """
    if shape is Any:
        return _anything
    if is_typeddict(shape):
        return _fields(shape)
    origin, parts = get_origin(shape), get_args(shape)
    if origin is Literal:
        return lambda value: value in parts
    if origin in (Union, UnionType):
        options = [checker(part) for part in parts]
        return lambda value: any(option(value) for option in options)
    if origin in (list, dict):
        item = checker(parts[-1])
        if origin is list:
            return lambda value: isinstance(value, list) and all(map(item, value))
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    if shape is float:
        return lambda value: type(value) in (float, int) and _moderate(value)
    if shape is int:
        return lambda value: type(value) is int and _moderate(value)
    return lambda value: type(value) is shape  # what JSON gives has no subclasses, and a bool is no int


def _moderate(value: Any) -> bool:
    return bool(-LARGEST <= value <= LARGEST)  # never so for a NaN; ints are compared as they are


def _anything(_: object) -> bool:
    return True


def _fields(shape: Any) -> _Check:
    checks = {name: checker(field) for name, field in get_type_hints(shape).items()}

    def check(value: object) -> bool:
        return isinstance(value, dict) and all(
            name in value and test(value[name]) for name, test in checks.items()
        )

    return check
