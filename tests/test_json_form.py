"""Dataclasses as JSON and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from equipoise.json_form import from_json, to_json


@dataclass(frozen=True)
class Inner:
    low: float
    high: float | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    kind: Literal["a", "b"]
    pairs: tuple[tuple[int, float], ...]
    span: tuple[float, float] | None
    inner: Inner | None
    by_name: Mapping[str, Inner]
    several: Sequence[int]
    flag: bool = False
    anything: Any = None


WHOLE = Outer(
    "x", 3, "b", ((1, 2.0), (3, 4.5)), (0.1, 0.2), Inner(1.0), {"one": Inner(0.0, 1.0)}, [1, 2], True, [None]
)
EMPTY = Outer("", 0, "a", (), None, None, {}, [])


@pytest.mark.parametrize("value", [WHOLE, EMPTY])
def test_what_was_written_is_read_back(value: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


def test_a_field_with_a_default_may_be_missing() -> None:
    written = to_json(EMPTY)
    del written["flag"], written["anything"]
    assert from_json(Outer, written) == EMPTY


def test_an_int_is_a_number_and_becomes_a_float() -> None:
    made = from_json(Inner, {"low": 1})
    assert isinstance(made.low, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "Outer.name: expected str, got 3"),
        ({"count": True}, "Outer.count: expected int, got True"),
        ({"count": 1.5}, "Outer.count: expected int"),
        ({"kind": "c"}, "Outer.kind: expected one of 'a', 'b', got 'c'"),
        ({"pairs": [[1]]}, r"Outer.pairs: expected a list of 2, got \[1\]"),
        ({"pairs": 1}, "Outer.pairs: expected a list, got 1"),
        ({"span": [1, "x"]}, "Outer.span: expected a number, got 'x'"),
        ({"inner": {"lower": 1}}, "Outer.inner: expected low, high; missing or unknown: high, low, lower"),
        ({"by_name": {"one": 1}}, "Outer.by_name.one: expected a dict, got 1"),
        ({"by_name": []}, r"Outer.by_name: expected a dict, got \[\]"),
        ({"several": ["x"]}, "Outer.several: expected int, got 'x'"),
        ({"flag": 1}, "Outer.flag: expected bool, got 1"),
        ({"other": 1}, "Outer: expected name, .*; missing or unknown: other"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_json(Outer, {**to_json(WHOLE), **change})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TypeError, match="Inner: expected low, high; missing or unknown: high, low"):
        from_json(Inner, {})
