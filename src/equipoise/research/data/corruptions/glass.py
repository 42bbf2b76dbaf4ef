"""A look through frosted glass: glass_blur (Hendrycks and Dietterich, ICLR 2019)."""

from functools import lru_cache

import numpy as np

from equipoise.research.data.corruptions.arrays import Floats, Generators, Indices, Pixels, pixels


def glass_blur(images: Pixels, generators: Generators, sigma: float, reach: float, sweeps: float) -> Pixels:
    """Smooth by a Gaussian, swap pixels with neighbours, smooth again.

    In each of `sweeps` sweeps every pixel, from the bottom right to the top left, changes places with one at
    a distance of U{−reach, …, reach} in each direction; a margin of `reach` pixels is only swapped with. The
    script that made TinyImageNet-C draws from −reach to reach − 1 and, through an alias, copies the neighbour
    where it means to swap; this does what the paper says.
    """
    distance, count = max(1, round(reach)), round(sweeps)
    smooth = smoothed_images(images.astype(np.float32), sigma)
    moved = shuffled(images.shape[:3], generators, distance, count)
    pixel_rows = smooth.reshape(-1, 3).take(moved, axis=0)
    return pixels(smoothed_images(pixel_rows.reshape(images.shape), sigma))


def smoothed_images(values: Floats, sigma: float) -> Floats:
    """A Gaussian of sigma pixels, cut off at 4 sigma, over height and width; edge pixels go on outside."""
    reach = int(4 * sigma + 0.5)
    if reach == 0:
        return values
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    for axis in (1, 2):
        size = values.shape[axis]
        padded = values.take(np.clip(np.arange(-reach, size + reach), 0, size - 1), axis=axis)
        total, term = np.zeros_like(values), np.empty_like(values)
        for start, weight in enumerate(weights):
            window = (slice(None),) * axis + (slice(start, start + size),)
            np.multiply(padded[window], weight, out=term)
            total += term
        values = total
    return values


def shuffled(shape: tuple[int, ...], generators: Generators, distance: int, sweeps: int) -> Indices:
    """Which pixel of the batch, as a flat index, is at each place after the swaps."""
    count, height, width = shape
    here = np.arange(count * height * width, dtype=np.intp)
    first = np.arange(count, dtype=np.intp) * (height * width)
    groups = fronts(height, width, distance)
    swapped = np.concatenate(groups)
    ends = np.cumsum([len(group) for group in groups]).tolist()
    pairs = np.empty((len(swapped), 2, count), dtype=np.intp)
    pairs[:, 0] = swapped[:, None] + first
    for _ in range(sweeps):
        size = (2, len(swapped))
        draws = [g.integers(-distance, distance, size, dtype=np.int16, endpoint=True) for g in generators]
        moves = np.stack(draws, axis=-1).astype(np.intp)
        pairs[:, 1] = pairs[:, 0] + moves[0] * width + moves[1]
        for start, end in zip([0, *ends], ends, strict=False):
            pair = pairs[start:end]
            here[pair] = here.take(pair[:, ::-1])
    return here


@lru_cache(maxsize=16)
def fronts(height: int, width: int, distance: int) -> tuple[Indices, ...]:
    """The pixels to swap, as flat indices, in groups that can be swapped at once, in order.

    A swap touches places up to `distance` away, so two swaps that are more than 2 · distance apart in a row
    or a column can be done in any order. Count rows and columns from the bottom right: pixels of the same
    column + (2 · distance + 1) · row are that far apart, and of two that are nearer, the one that is earlier
    from the bottom right to the top left has the smaller number. So the swaps of a number are done at once,
    after those of all smaller ones, with the outcome of one after another.
    """
    rows = np.arange(height - 1 - distance, distance - 1, -1)
    columns = np.arange(width - 1 - distance, distance - 1, -1)
    numbers = np.arange(len(columns)) + (2 * distance + 1) * np.arange(len(rows))[:, None]
    places = (rows[:, None] * width + columns).ravel()
    order = np.argsort(numbers, axis=None, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers.ravel()[order])) + 1
    return tuple(np.split(places[order], cuts))
