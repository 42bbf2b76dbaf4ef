"""The names of what methods keep between batches: prefixes that say what kind of thing it is."""

from collections.abc import Mapping

from torch import Tensor

SAMPLES = "samples."
"""Observations as they came, a row each."""

SUPPORTS = "supports."
"""Features of observations, or sums of them."""

OPTIMIZER = "optimizer."
"""An optimiser's state."""


def part(kept: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names start with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in kept.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `part`."""
    return {prefix + name: tensor for name, tensor in tensors.items()}
