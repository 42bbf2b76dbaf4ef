from typing import Any, Literal, TypedDict

import pytest

from equipoise.report.numbers.shape import checker


class Inner(TypedDict):
    name: str
    sizes: list[int]


class Outer(TypedDict):
    kind: Literal["a", "b"]
    inner: Inner | None
    free: dict[str, Any]
    ratio: float


GOOD = {"kind": "a", "inner": {"name": "x", "sizes": [1, 2]}, "free": {"y": [None]}, "ratio": 1}


@pytest.mark.parametrize("change", [{}, {"inner": None}, {"ratio": 0.5}, {"more": 1}])
def test_what_fits(change: dict[str, Any]) -> None:
    assert checker(Outer)({**GOOD, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "c"},
        {"inner": {"name": "x"}},
        {"inner": {"name": "x", "sizes": [1, "2"]}},
        {"inner": {"name": "x", "sizes": [1.5]}},
        {"inner": {"name": "x", "sizes": [True]}},
        {"inner": {"name": "x", "sizes": (1, 2)}},
        {"inner": {"name": None, "sizes": []}},
        {"free": []},
        {"ratio": "1"},
        {"ratio": True},
        {"ratio": None},
    ],
)
def test_what_does_not(change: dict[str, Any]) -> None:
    assert not checker(Outer)({**GOOD, **change})


@pytest.mark.parametrize("missing", ["kind", "inner", "free", "ratio"])
def test_fields_that_are_not_there(missing: str) -> None:
    assert not checker(Outer)({name: value for name, value in GOOD.items() if name != missing})


def test_values_of_a_dict_are_looked_at() -> None:
    assert checker(dict[str, int])({"a": 1})
    assert not checker(dict[str, int])({"a": "1"})
