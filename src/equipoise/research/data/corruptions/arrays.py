"""Functions shared by the corruptions: pixels and their floats, channels, interpolation, random numbers.

The result for an image must not depend on the images beside it, to the bit. So batches are only worked on by
operations that are exact, or that treat each number by itself (sums, products and roundings of IEEE 754, in a
fixed order), never by reductions of floats whose order may depend on the batch.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.research.data.corruptions.severities import CORRUPTIONS

Pixels: TypeAlias = NDArray[np.uint8]
"""Images (N, height, width, 3)."""
Floats: TypeAlias = NDArray[np.float32]
Reals: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
Generators: TypeAlias = Sequence[np.random.Generator]


def generators(name: str, seeds: Sequence[int]) -> list[np.random.Generator]:
    """A generator for each image, from its seed and the corruption.

    Not from the tier: one image is blurred in one direction, snowed on from one side, at every tier, so that
    tiers differ in nothing but how bad they are.
    """
    index = CORRUPTIONS.index(name)
    return [np.random.Generator(np.random.SFC64([index, seed])) for seed in seeds]


def pixels(values: Floats) -> Pixels:
    """The nearest of 0, 1, …, 255 to each value (half to even); `values` is written into."""
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)


def in_each_channel(field: Floats) -> Floats:
    """(N, H, W) three times, as (N, H, W, 3); much faster than to broadcast over so short an axis."""
    repeated = np.empty((*field.shape, 3), dtype=np.float32)
    for channel in range(3):
        repeated[..., channel] = field
    return repeated


def between(low: Floats, high: Floats, part: Floats) -> Floats:
    """Linear interpolation, low + part · (high − low); `high` is written into."""
    high -= low
    high *= part
    high += low
    return high
