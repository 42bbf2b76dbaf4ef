"""Options: dataclass fields with a range, and errors that say what was expected and what came."""

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import field, fields
from functools import partial
from typing import Any

import numpy as np

from equipoise.errors import OptionError

_CHECK = "check"


def number(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite real number in [low, high] as a float; numpy and tensor scalars count as numbers."""
    try:
        real = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        real = math.nan
    if not (math.isfinite(real) and low <= real <= high):
        raise _out_of_range(name, value, low, high)
    return real


def integer(name: str, value: Any, *, low: float, high: float = math.inf) -> int:
    """A whole number in [low, high] as an int, exact at any size; 3.0 and numpy's integers count as whole."""
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None:
        real = number(name, value, low=low, high=high)
        if real != int(real):
            raise OptionError(f"expected {name} as a whole number, got {value!r}")
        whole = int(real)
    if not low <= whole <= high:
        raise _out_of_range(name, value, low, high)
    return whole


def _out_of_range(name: str, value: Any, low: float, high: float) -> OptionError:
    """The error of a number that is not in [low, high]; whole limits are shown in full."""
    limits = [f">= {_shown(low)}"] * (low > -math.inf) + [f"<= {_shown(high)}"] * (high < math.inf)
    return OptionError(f"expected {name} {' and '.join(limits) or 'as a number'}, got {value!r}")


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


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
    """A dataclass field: true or false; the text "false", which is true to Python, is refused."""
    return field(default=default, metadata={_CHECK: _true_or_false})


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


def _true_or_false(name: str, value: Any) -> bool:
    """A bool; numpy's counts as one, and so do the whole numbers 0 and 1."""
    try:
        index = int(value) if isinstance(value, np.bool_) else operator.index(value)
    except TypeError:
        index = -1
    if index not in (0, 1):
        raise OptionError(f"expected {name} as True or False, got {value!r}")
    return bool(index)
