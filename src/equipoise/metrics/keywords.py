"""Arguments by name alone, and errors that name them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from equipoise.errors import BatchTypeError, UnknownOptionError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def by_name(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Raise an error that lists the keywords of a metric where an argument has none, or an unknown one.

    BatchTypeError for an argument by position, UnknownOptionError for an unknown keyword. Python's own errors
    would not say whether the first tensor was taken for probabilities or for logits.
    """
    keywords = keywords_of(function)
    positions = len(inspect.signature(function).parameters) - len(keywords)  # `self` of a method

    @wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if len(args) > positions:
            predictions = " or ".join(f"{name}=" for name in ("probs", "logits") if name in keywords)
            target = ", and target=" if "target" in keywords else ""
            raise BatchTypeError(
                f"{function.__name__}: expected predictions by name, {predictions}{target}, got "
                f"{len(args) - positions} of them by position"
            )
        if unknown := [name for name in kwargs if name not in keywords]:
            raise UnknownOptionError(
                f"{function.__name__} has no argument {_listed(unknown)}; it takes {_listed(keywords)}"
            )
        return function(*args, **kwargs)

    return checked


def keywords_of(function: Callable[..., object]) -> list[str]:
    """The names of the arguments that a function takes by name alone."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _listed(names: list[str]) -> str:
    return ", ".join(f"{name}=" for name in names)
