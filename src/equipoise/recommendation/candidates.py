"""The methods that are tried, by the kind of stream, those that cost least first."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from equipoise.errors import OptionError
from equipoise.factory import make_method

StreamKind = Literal[
    "shuffled",
    "sorted",
    "mixed",
    "continual",
    "gradual",
    "correlated",
    "recurring",
    "abrupt",
    "noisy",
    "imbalanced",
]
"""The kinds of `equipoise.streams` that can be made of labelled samples without an order in time."""

MethodChoice: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""The name of a method, or its name and options."""

NO_ADAPTATION, DEFAULT = "source", "poise"
"""The methods that are tried whatever the budget: the baseline, and the library's default."""


@dataclass(frozen=True)
class Candidate:
    """A method with options other than its defaults."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The name, with options as they are written in a call."""
        return f"{self.name}({keywords(self.options)})" if self.options else self.name


def keywords(options: Mapping[str, Any]) -> str:
    """Options as they are written in a call."""
    written = {name: json.dumps(v) if isinstance(v, str) else repr(v) for name, v in options.items()}
    return ", ".join(f"{name}={value}" for name, value in written.items())


_PRIOR = ("roid", {"prior_correction": True})

# Cheap ones first. Statistics of the batch alone ("norm") need batches of all classes, "lame" and ROID's
# prior need batches of few; "sotta" and "rotta" learn from a balanced memory, sotta from sure samples alone;
# "sar" goes back to the source model ("rdumb" does so as well, but is its base alone in a short stream).
# What cannot work on a model (batch norm, a linear head or images are lacking) says so when it is tried;
# "foa_shift" needs neither batch norm nor gradients.
_BATCHES_OF_ALL_CLASSES: Sequence[MethodChoice] = ("norm", "foa_shift", "t3a", "tent", "eta", "sar", "roid")
_BATCHES_OF_FEW_CLASSES: Sequence[MethodChoice] = (
    "lame",
    "bn_alpha",
    "bn_ema",
    "t3a",
    "sotta",
    "rotta",
    _PRIOR,
)
SHORT_LISTS: Mapping[StreamKind, Sequence[MethodChoice]] = MappingProxyType(
    {
        "shuffled": _BATCHES_OF_ALL_CLASSES,
        "continual": _BATCHES_OF_ALL_CLASSES,
        "gradual": _BATCHES_OF_ALL_CLASSES,
        "abrupt": _BATCHES_OF_ALL_CLASSES,
        "recurring": _BATCHES_OF_ALL_CLASSES,
        "mixed": ("norm", "bn_alpha", "foa_shift", "t3a", "eta", "sar", "roid"),
        "noisy": ("norm", "bn_alpha", "t3a", "eta", "sotta", "sar", "roid"),
        "sorted": _BATCHES_OF_FEW_CLASSES,
        "correlated": _BATCHES_OF_FEW_CLASSES,
        "imbalanced": ("bn_alpha", "bn_ema", "lame", "t3a", "eta", "sar", _PRIOR),
    }
)


def candidates(methods: Sequence[MethodChoice] | None, stream: StreamKind) -> list[Candidate]:
    """The methods that are tried, no adaptation first.

    Args:
        methods: names, or pairs of a name and options; None: the short list of the stream, after "poise".
        stream: the kind.
    """
    if methods is None:
        found = [_checked(choice) for choice in (DEFAULT, *SHORT_LISTS[stream])]
    else:
        if isinstance(methods, str) or not isinstance(methods, Sequence):
            raise OptionError(f"expected methods as a list of names, or of (name, options), got {methods!r}")
        found = [_checked(choice) for choice in methods]
    baseline = Candidate(NO_ADAPTATION)
    return [baseline, *(one for one in found if one != baseline)]


def _checked(choice: Any) -> Candidate:
    """A method that exists, with options that it has; its tempering is chosen by the recommendation."""
    pair = (choice, {}) if isinstance(choice, str) else choice
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], Mapping)):
        raise OptionError(f"expected a method as a name, or as (name, options), got {choice!r}")
    name, options = pair[0], dict(pair[1])
    for taken in ("tempering", "distributed", "inputs", "outputs"):
        if taken in options:
            raise OptionError(f"{taken} of {name} is not an option here: recommend() sets it for all methods")
    make_method(name, options)
    return Candidate(name, options)
