"""Checks of options, each with an error that says what was expected and what came."""

import math
from collections.abc import Collection
from typing import Any

from equipoise.errors import OptionError


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


def integer(name: str, value: Any, *, low: int, high: float = math.inf) -> int:
    """A whole number in [low, high] as an int; 3.0 and numpy's integers count as whole."""
    real = number(name, value, low=low, high=high)
    if real != int(real):
        raise OptionError(f"expected {name} as a whole number, got {value!r}")
    return int(real)


def one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in list(known):
        raise OptionError(f"expected {name} as one of {', '.join(known)}, got {value!r}")
