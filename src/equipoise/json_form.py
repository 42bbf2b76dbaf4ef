"""Frozen dataclasses as JSON and back, checked by their annotations."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Kind = TypeVar("_Kind")


def to_json(value: Any) -> Any:
    """A dataclass, or a container of them, as dicts, lists, numbers and text; tuples become lists."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    return value


def from_json(kind: type[_Kind], value: Any) -> _Kind:
    """The dataclass that `to_json` wrote.

    TypeError where a field is missing, unknown or of another type than its annotation; a field with a default
    may be missing. An int is a float too, a bool is no number.
    """
    made: _Kind = _of_kind(kind, value, kind.__name__)
    return made


def _of_kind(kind: Any, value: Any, name: str) -> Any:
    """The value in the form that an annotation says."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _of_dataclass(kind, value, name)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first_of(parts, value, name)
    if origin is Literal:
        return _checked(value in parts, value, name, f"one of {', '.join(map(repr, parts))}")
    if origin is tuple:
        items = _checked(isinstance(value, (list, tuple)), value, name, "a list")
        each = parts[:1] * len(items) if parts[1:] == (...,) else parts
        _checked(len(items) == len(each), value, name, f"a list of {len(each)}")
        return tuple(_of_kind(part, item, name) for part, item in zip(each, items, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        named = _checked(isinstance(value, Mapping), value, name, "a dict")
        return {key: _of_kind(parts[1], each, f"{name}.{key}") for key, each in named.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [
            _of_kind(parts[0], item, name)
            for item in _checked(isinstance(value, (list, tuple)), value, name, "a list")
        ]
    return _of_plain_type(kind, value, name)


def _of_dataclass(kind: Any, value: Any, name: str) -> Any:
    named = _checked(isinstance(value, Mapping), value, name, "a dict")
    own = {field.name: field for field in fields(kind)}
    needed = {n for n, f in own.items() if f.default is MISSING and f.default_factory is MISSING}
    if wrong := sorted(set(named) ^ set(own) if needed - set(named) else set(named) - set(own)):
        raise TypeError(f"{name}: expected {', '.join(own)}; missing or unknown: {', '.join(wrong)}")
    hints = get_type_hints(kind)
    return kind(**{each: _of_kind(hints[each], named[each], f"{name}.{each}") for each in named})


def _first_of(kinds: Sequence[Any], value: Any, name: str) -> Any:
    """The value in the first of several forms that it has."""
    if value is None and types.NoneType in kinds:
        return None
    first, *rest = (kind for kind in kinds if kind is not types.NoneType)
    try:
        return _of_kind(first, value, name)
    except TypeError:
        if not rest:
            raise
        return _first_of(rest, value, name)


def _of_plain_type(kind: Any, value: Any, name: str) -> Any:
    if kind is Any:
        return value
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(_checked(number, value, name, "a number"))
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return _checked(fits, value, name, kind.__name__)


def _checked(fits: bool, value: Any, name: str, expected: str) -> Any:
    if not fits:
        raise TypeError(f"{name}: expected {expected}, got {value!r:.80}")
    return value
