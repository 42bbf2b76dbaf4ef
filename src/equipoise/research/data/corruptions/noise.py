"""Noise: gaussian_noise, shot_noise and impulse_noise (Hendrycks and Dietterich, ICLR 2019)."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.research.data.corruptions.arrays import Floats, Generators, Pixels, pixels

GUIDES = 1024  # starting points for the search in each distribution


def gaussian_noise(images: Pixels, generators: Generators, scale: float) -> Pixels:
    """Add noise of a normal distribution to every value: x + N(0, scale)."""
    shape = images.shape[1:]
    noise = np.stack([g.standard_normal(shape, dtype=np.float32) for g in generators])
    noise *= np.float32(255 * scale)
    noise += images
    return pixels(noise)


def impulse_noise(images: Pixels, generators: Generators, fraction: float) -> Pixels:
    """Salt and pepper: each value is, with probability fraction / 2 each, set to 0 or to 1.

    Each channel of a pixel is hit by itself, as in the original.
    """
    shape = images.shape[1:]
    draws = np.stack([g.random(shape, dtype=np.float32) for g in generators])
    noisy = images.copy()
    noisy[draws < np.float32(fraction)] = 255
    noisy[draws < np.float32(fraction / 2)] = 0
    return noisy


def shot_noise(images: Pixels, generators: Generators, photons: float) -> Pixels:
    """Count photons: Poisson(x · photons) / photons for every value.

    A value has one of 256 levels, so the counts are drawn from 256 distributions, by inversion: the count is
    the smallest k with u < P(X ≤ k), for u uniform on multiples of 2⁻²⁴. That is several times as fast as
    numpy's draws, and cuts off tails of probability 2⁻²⁴.
    """
    shape = images.shape[1:]
    draws = np.stack([g.random(shape, dtype=np.float32) for g in generators])
    counts = _counts(images.ravel(), draws.ravel(), _distributions(photons))
    return _levels(photons).take(counts).reshape(images.shape)


class Distributions(NamedTuple):
    """Poisson distributions of the 256 levels of a value, one a row."""

    cumulated: Floats  # P(X ≤ k) of count k; 1 in the last column
    guides: NDArray[np.int32]  # the count for u = 0, 1 / GUIDES, …


@lru_cache(maxsize=16)
def _distributions(photons: float) -> Distributions:
    """The distributions of Poisson(level / 255 · photons), by log P(X = k) = k log mean − log k! − mean."""
    means = np.arange(256) / 255 * photons
    most = int(photons + 8 * photons**0.5 + 16)  # more photons than this have a probability below 2⁻²⁴
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.arange(most + 1) * np.log(means)[:, None]
    logs[:, 0] = 0  # 0 · log 0 is 0 here: no photons, for sure, at level 0
    cumulated = np.exp(logs - log_factorials - means[:, None]).cumsum(axis=1).astype(np.float32)
    cumulated[:, -1] = 1
    starts = np.arange(GUIDES, dtype=np.float32) / GUIDES
    guides = np.stack([np.searchsorted(row, starts, side="right") for row in cumulated])
    return Distributions(cumulated, guides.astype(np.int32))


def _counts(levels: NDArray[np.uint8], draws: Floats, distributions: Distributions) -> NDArray[np.int32]:
    """The smallest count k of each level with draw < P(X ≤ k), found from the guide upwards."""
    cumulated, guides = distributions
    rows = levels.astype(np.int32)
    starts = (draws * GUIDES).astype(np.int32)
    starts += rows * GUIDES
    counts = guides.ravel().take(starts)
    flat = cumulated.ravel()
    rows *= cumulated.shape[1]
    np.add(rows, counts, out=starts)
    behind = np.flatnonzero(draws >= flat.take(starts))
    while behind.size:
        counts[behind] += 1
        behind = behind[draws[behind] >= flat.take(rows[behind] + counts[behind])]
    return counts


@lru_cache(maxsize=16)
def _levels(photons: float) -> NDArray[np.uint8]:
    """The pixel value for each count."""
    most = _distributions(photons).cumulated.shape[1]
    return pixels(np.arange(most, dtype=np.float32) * np.float32(255 / photons))
