"""Options: dataclass fields with a range, and errors that say what was expected and what came."""

import math
from collections.abc import Callable, Collection
from dataclasses import field, fields
from functools import partial
from typing import Any

from equipoise.errors import OptionError

_CHECK = "check"


def number(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite real number in [low, high] as a float; numpy and tensor scalars count as numbers."""
    try:
        real = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        real = math.nan
    if not (math.isfinite(real) and low <= real <= high):
        limits = [f">= {low:g}"] * (low > -math.inf) + [f"<= {high:g}"] * (high < math.inf)
        raise OptionError(f"expected {name} {' and '.join(limits) or 'as a number'}, got {value!r}")
    return real


def integer(name: str, value: Any, *, low: float, high: float = math.inf) -> int:
    """A whole number in [low, high] as an int; 3.0 and numpy's integers count as whole."""
    real = number(name, value, low=low, high=high)
    if real != int(real):
        raise OptionError(f"expected {name} as a whole number, got {value!r}")
    return int(real)


def one_of(name: str, value: Any, known: Collection[str]) -> str:
    """A value that is among the known ones; OptionError for any other."""
    if value not in list(known):
        raise OptionError(f"expected {name} as one of {', '.join(known)}, got {value!r}")
    return str(value)


def option(default: Any, *, low: float = -math.inf, high: float = math.inf, whole: bool | None = None) -> Any:
    """A dataclass field: a number in [low, high], by default a whole one where `default` is an int.

    None is allowed where it is the default.
    """
    whole = isinstance(default, int) if whole is None else whole
    kind: Callable[..., Any] = integer if whole else number
    check = partial(kind, low=low, high=high)
    return field(default=default, metadata={_CHECK: partial(_or_none, check) if default is None else check})


def choice(default: str, known: Collection[str]) -> Any:
    """A dataclass field: one of the known values."""
    return field(default=default, metadata={_CHECK: partial(one_of, known=known)})


def flag(default: bool) -> Any:
    """A dataclass field: true or false."""
    return field(default=default, metadata={_CHECK: lambda _name, value: bool(value)})


def checked_by(check: Callable[[str, Any], Any], default: Any) -> Any:
    """A dataclass field whose value a function checks and converts, given the field's name and the value."""
    return field(default=default, metadata={_CHECK: check})


def check_options(options: Any) -> None:
    """Check and convert the fields of a frozen dataclass; OptionError for a value out of range."""
    for one in fields(options):
        if check := one.metadata.get(_CHECK):
            object.__setattr__(options, one.name, check(one.name, getattr(options, one.name)))


def _or_none(check: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    return None if value is None else check(name, value)
