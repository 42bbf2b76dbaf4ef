"""Blur: of a lens, of glass, of motion and of a zoom (Hendrycks and Dietterich, ICLR 2019)."""

import math
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.research.data.corruptions.arrays import (
    Floats,
    Generators,
    Indices,
    Pixels,
    Reals,
    between,
    pixels,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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

    A disk of so small a radius cannot be drawn: below a radius of 1 it is one pixel, and blurs nothing.
    """
    reach = len(kernel) // 2
    outer = math.ceil((reach + 0.5) * scale - 0.5)
    ours, theirs = np.arange(-outer, outer + 1)[:, None], np.arange(-reach, reach + 1) * scale
    ends = np.minimum(ours + 0.5, theirs + scale / 2) - np.maximum(ours - 0.5, theirs - scale / 2)
    overlaps = np.clip(ends, 0, None) / scale
    # Summed one after another, not by a matrix product, for the same bits on every machine.
    rows = sum((overlaps[:, i : i + 1] * kernel[i] for i in range(len(kernel))), start=np.zeros(1))
    return sum((overlaps[:, i] * rows[:, i : i + 1] for i in range(len(kernel))), start=np.zeros(1))


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


def motion_blur(images: Pixels, generators: Generators, radius: float, sigma: float) -> Pixels:
    """Blur by a motion of the camera, at an angle of U(−45°, 45°) to the horizontal."""
    angles = [g.uniform(-45, 45) for g in generators]
    height, width = images.shape[1:3]
    rows = along_lines(images.reshape(len(images), height, width * 3), angles, radius, sigma, channels=3)
    return pixels(rows).reshape(images.shape)


def along_lines(
    rows: Pixels | Floats, angles: list[float], radius: float, sigma: float, channels: int
) -> Floats:
    """Blur each image, (N, H, W · channels), on one side along a line at its angle in degrees.

    out(y, x) = Σᵢ wᵢ in(y + round(i sin θ), x + round(i cos θ)), i = 0, …, 2 ⌈radius⌉, wᵢ ∝ exp(−i² / 2σ²):

    ImageMagick's motion blur, which the original calls: positions are rounded to pixels (half down), those
    outside are of the nearest pixel of the image. Weights that vanish in float32 are left out.
    """
    weights = motion_weights(radius, sigma)
    reach = len(weights) - 1
    height, width = rows.shape[1], rows.shape[2] // channels
    middle = slice(reach * channels, (reach + width) * channels)
    padded = np.empty((height + 2 * reach, (width + 2 * reach) * channels), dtype=np.float32)
    margins = padded.reshape(height + 2 * reach, width + 2 * reach, channels)
    blurred = np.empty(rows.shape, dtype=np.float32)
    term = np.empty(rows.shape[1:], dtype=np.float32)
    for image, angle, total in zip(rows, angles, blurred, strict=True):
        padded[reach : reach + height, middle] = image
        margins[:, :reach] = margins[:, reach : reach + 1]
        margins[:, reach + width :] = margins[:, reach + width - 1 : reach + width]
        padded[:reach] = padded[reach]
        padded[reach + height :] = padded[reach + height - 1]
        cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        for step, weight in enumerate(weights):
            top = reach + math.ceil(step * sine - 0.5)
            left = (reach + math.ceil(step * cosine - 0.5)) * channels
            shifted = padded[top : top + height, left : left + width * channels]
            np.multiply(shifted, weight, out=term if step else total)
            if step:
                total += term
    return blurred


def motion_weights(radius: float, sigma: float) -> Floats:
    """The weights wᵢ, with the sum 1, up to the last that counts in float32."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = weights[weights > _NEGLIGIBLE]
    weights /= weights.sum()
    return weights.astype(np.float32)


_LARGEST = 256 * 256  # pixels of an image, for the matrix to be of a bearable size


def zoom_blur(images: Pixels, largest: float) -> Pixels:
    """The mean of the image and of its zooms by 1, 1.01, …, `largest` into the centre.

    All of this is linear, and the same for all images: one sparse matrix over pixels, applied to the whole
    batch. It adds up each row from left to right for each image by itself. The zooms of large images are
    added up one by one.
    """
    count, height, width = images.shape[:3]
    factors = tuple(1 + step / 100 for step in range(round(100 * (largest - 1)) + 1))
    if height * width > _LARGEST:
        return pixels(one_by_one(images, factors))
    columns = np.ascontiguousarray(images.reshape(count, height * width, 3).swapaxes(0, 1), dtype=np.float32)
    blurred = mean_zoom(height, width, factors) @ columns.reshape(height * width, count * 3)
    return np.ascontiguousarray(pixels(blurred).reshape(columns.shape).swapaxes(0, 1)).reshape(images.shape)


@lru_cache(maxsize=8)
def mean_zoom(height: int, width: int, factors: tuple[float, ...]) -> "csr_array":
    """The matrix from the pixels of an image to those of the mean of it and its zooms."""
    from scipy.sparse import csr_array  # here, because `equipoise serve` is installed without SciPy

    size = height * width
    places, weights = [np.arange(size)], [np.ones(size)]  # the image itself
    for factor in factors:
        upright, level = zoomed(height, factor), zoomed(width, factor)
        for rows, part in zip(upright.places, upright.parts, strict=True):
            for columns, share in zip(level.places, level.parts, strict=True):
                places.append(np.add.outer(rows * width, columns).ravel())
                weights.append(np.multiply.outer(part, share).ravel())
    targets = np.tile(np.arange(size), len(places))
    terms = np.concatenate(weights) / (len(factors) + 1)
    matrix = csr_array((terms, (targets, np.concatenate(places))), shape=(size, size))
    matrix.sum_duplicates()
    matrix = matrix.astype(np.float32)
    matrix.eliminate_zeros()
    return matrix


def one_by_one(images: Pixels, factors: tuple[float, ...]) -> Floats:
    """The mean of the images and their zooms, without a matrix."""
    height, width = images.shape[1:3]
    total = images.astype(np.float32)
    for factor in factors:
        rows, columns = zoomed(height, factor), zoomed(width, factor)
        shown = images[:, rows.first : rows.first + rows.shown, columns.first : columns.first + columns.shown]
        for channel in range(3):
            total[..., channel] += enlarged(shown[..., channel].astype(np.float32), rows, columns)
    total /= np.float32(len(factors) + 1)
    return total


class Zoomed(NamedTuple):
    """Where a zoom looks along an axis: for each place of the outcome two neighbours and their weights."""

    places: tuple[Indices, Indices]
    parts: tuple[Reals, Reals]
    first: int  # the first place that the zoom shows
    shown: int  # how many it shows


def zoomed(size: int, factor: float) -> Zoomed:
    """A zoom into the centre of an axis, linear between places.

    The middle ⌈size / factor⌉ places are spread, the outer ones onto the outer ones, over
    round(factor · that) places, of which the middle `size` are kept.
    """
    shown = math.ceil(size / factor)
    first, spread = (size - shown) // 2, round(shown * factor)
    where = (np.arange(size) + (spread - size) // 2) * ((shown - 1) / (spread - 1))
    before = np.floor(where).astype(np.intp)
    after = np.minimum(before + 1, shown - 1)
    return Zoomed((before + first, after + first), (1 - (where - before), where - before), first, shown)


def enlarged(fields: Floats, rows: Zoomed, columns: Zoomed) -> Floats:
    """Fields of the places that a zoom shows, (N, rows, columns), as it shows them."""
    for axis, zoom in ((1, rows), (2, columns)):
        before, after = (fields.take(place - zoom.first, axis=axis) for place in zoom.places)
        part = zoom.parts[1].astype(np.float32)
        fields = between(before, after, part[:, None] if axis == 1 else part)
    return fields
