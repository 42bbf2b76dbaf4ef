"""Blur of a lens out of focus: defocus_blur (Hendrycks and Dietterich, ICLR 2019)."""

import math
from collections import defaultdict

import numpy as np

from equipoise.research.data.corruptions.arrays import Pixels, Reals, pixels

_NEGLIGIBLE = 2.0**-24  # of the largest weight: nothing in a float32 sum


def defocus_blur(images: Pixels, radius: float, antialias: float, scale: float = 1.0) -> Pixels:
    """Convolve with a disk whose edge is smoothed; the image is mirrored at its edge pixels.

    The weights of a disk are few numbers, each at many places. So the pixels of the same weight are summed
    first, as whole numbers, which is fast and exact.
    """
    kernel = resized_kernel(disk(radius, antialias), scale)
    reach = len(kernel) // 2
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    places: dict[float, list[tuple[int, int]]] = defaultdict(list)
    for (top, left), weight in np.ndenumerate(kernel.astype(np.float32)):
        if weight > _NEGLIGIBLE * kernel.max():
            places[float(weight)].append((top, left))
    # 65535 / 255 = 257: so many pixels fit into sixteen bits.
    whole = np.uint16 if max(map(len, places.values())) <= 257 else np.uint32
    blurred = np.zeros(images.shape, dtype=np.float32)
    for share, corners in places.items():
        total = np.zeros(images.shape, dtype=whole)
        for top, left in corners:
            total += padded[:, top : top + height, left : left + width]
        blurred += total * np.float32(share)
    return pixels(blurred)


def disk(radius: float, antialias: float) -> Reals:
    """The kernel: x² + y² ≤ radius², smoothed by 3 × 3 weights of a Gaussian of sigma `antialias`.

    The sum of its weights is 1. The original has it on 17 × 17 places, here it has as many as it needs.
    """
    reach = math.floor(radius) + 1
    line = np.arange(-reach, reach + 1)
    weights = (line**2 + line[:, None] ** 2 <= radius**2).astype(np.float64)
    beside = math.exp(-1 / (2 * antialias**2))
    for axis in (0, 1):
        weights = weights + beside * (np.roll(weights, 1, axis) + np.roll(weights, -1, axis))
    weights /= weights.sum()
    return weights


def resized_kernel(kernel: Reals, scale: float) -> Reals:
    """The kernel for images of another size: each weight is a square of `scale` × `scale` pixels.

    A disk of so small a radius cannot be drawn anew: below a radius of 1 it is one pixel, and blurs nothing.
    """
    reach = len(kernel) // 2
    outer = math.ceil((reach + 0.5) * scale - 0.5)
    ours, theirs = np.arange(-outer, outer + 1)[:, None], np.arange(-reach, reach + 1) * scale
    ends = np.minimum(ours + 0.5, theirs + scale / 2) - np.maximum(ours - 0.5, theirs - scale / 2)
    overlaps = np.clip(ends, 0, None) / scale
    # Summed one after another, not by a matrix product, for the same bits on every machine.
    rows = sum((overlaps[:, i : i + 1] * kernel[i] for i in range(len(kernel))), start=np.zeros(1))
    return sum((overlaps[:, i] * rows[:, i : i + 1] for i in range(len(kernel))), start=np.zeros(1))
