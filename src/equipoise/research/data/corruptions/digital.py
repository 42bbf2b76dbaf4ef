"""Brightness, contrast, pixelate, JPEG and elastic_transform (Hendrycks and Dietterich, ICLR 2019)."""

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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


def brightness(images: Pixels, shift: float) -> Pixels:
    """Add to the value of HSV: V = max(R, G, B) becomes V' = min(V + shift, 1), hue and saturation stay.

    So every channel is multiplied by V' / V, and black becomes a grey of V' = shift.
    """
    largest = np.maximum(np.maximum(images[..., 0], images[..., 1]), images[..., 2]).astype(np.uint16)
    largest <<= 8
    places = np.empty(images.shape, dtype=np.uint16)
    for channel in range(3):
        np.bitwise_or(largest, images[..., channel], out=places[..., channel])
    return _brighter(shift).take(places)


@lru_cache(maxsize=16)
def _brighter(shift: float) -> NDArray[np.uint8]:
    """A channel's new level, at 256 · V + its level."""
    levels = np.arange(256, dtype=np.float64)
    values = np.minimum(levels / 255 + shift, 1)
    table = levels * (values / np.maximum(levels / 255, 1 / 255))[:, None]
    table[0] = 255 * values[0]
    return pixels(table.astype(np.float32)).ravel()


def contrast(images: Pixels, factor: float) -> Pixels:
    """Pull every channel to its mean over the image: (x − mean) · factor + mean."""
    count, height, width = images.shape[:3]
    # Sums of whole numbers are exact in any order; over whole rows first, since that is fastest.
    sums = images.reshape(count, height, width * 3).sum(axis=1, dtype=np.uint32).reshape(count, width, 3)
    means = sums.sum(axis=1, dtype=np.uint64) / (height * width)
    shifts = np.tile((means * (1 - factor)).astype(np.float32), width)[:, None]
    values = images.reshape(count, height, width * 3) * np.float32(factor)
    values += shifts
    return pixels(values).reshape(images.shape)


def pixelate(images: Pixels, part: float) -> Pixels:
    """Shrink height and width to that part, rounded down, and enlarge again, both by a box filter."""
    height, width = images.shape[1:3]
    rows, columns = max(1, int(height * part)), max(1, int(width * part))
    small = np.empty((len(images), rows, columns, 3), dtype=np.uint8)
    for image, target in zip(images, small, strict=True):
        target[:] = np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX))
    # To enlarge by a box filter is to take the pixel in which the middle of the new one is.
    down = ((np.arange(height) + 0.5) * (rows / height)).astype(np.intp)
    across = ((np.arange(width) + 0.5) * (columns / width)).astype(np.intp)
    enlarged: Pixels = small.take(across, axis=2).take(down, axis=1)
    return enlarged


def jpeg_compression(images: Pixels, quality: float) -> Pixels:
    """Encode each image as JPEG of that quality, as Pillow does, and decode it."""
    decoded = np.empty_like(images)
    for image, target in zip(images, decoded, strict=True):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=round(quality))
        target[:] = np.asarray(Image.open(file, formats=["JPEG"]))
    return decoded


def elastic_transform(
    images: Pixels, generators: Generators, strength: float, smoothing: float, shift: float
) -> Pixels:
    """A random affine map, then smooth random displacements; lengths are parts of the shorter side.

    The affine map moves each coordinate of three points around the centre by U(−shift, shift). Displacements
    are strength · Gaussian(smoothing) ∗ U(−1, 1), one field for each direction. Both look up the image by
    linear interpolation; the first mirrors it at its edge pixels, the second at its edges.
    """
    height, width = images.shape[1:3]
    side = min(height, width)
    moves = np.stack([g.uniform(-shift * side, shift * side, (3, 2)) for g in generators])
    planes = np.ascontiguousarray(np.moveaxis(images, -1, 1), dtype=np.float32)
    planes = looked_up(planes, *affine(height, width, moves), repeat_edge=False)
    if strength:
        shape = (2, height, width)
        draws = np.stack([g.random(shape, dtype=np.float32) for g in generators])
        fields = smoothed_fields(draws * 2 - 1, smoothing * side) * np.float32(strength * side)
        down, across = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
        planes = looked_up(planes, fields[:, 0] + down, fields[:, 1] + across, repeat_edge=True)
    return np.ascontiguousarray(np.moveaxis(pixels(planes), 1, -1))


def affine(height: int, width: int, moves: Reals) -> tuple[Floats, Floats]:
    """Where to look, as y and x of (N, H, W), if three points are moved by `moves`, (N, 3, 2).

    The points are the centre plus (s, s), (s, −s) and (−s, −s), with s a third of the shorter side.
    """
    third = min(height, width) // 3
    centre = np.array([height // 2, width // 2], dtype=np.float64)
    points = centre + third * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = points + moves
    # The map back has point + A (place − moved point) with A (moved edges) = edges: a two by two system.
    edges, moved_edges = points[:2] - points[2], moved[:, :2] - moved[:, 2:]
    a, b, c, d = np.moveaxis(moved_edges.reshape(-1, 4), 1, 0)
    determinant = a * d - b * c
    down, across = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    looked = []
    for axis in (0, 1):
        along_y = (edges[0, axis] * d - edges[1, axis] * b) / determinant
        along_x = (edges[1, axis] * a - edges[0, axis] * c) / determinant
        start = points[2, axis] - along_y * moved[:, 2, 0] - along_x * moved[:, 2, 1]
        along_y, along_x, start = (v.astype(np.float32)[:, None, None] for v in (along_y, along_x, start))
        looked.append(along_y * down + start + along_x * across)
    return looked[0], looked[1]


def smoothed_fields(fields: Floats, sigma: float) -> Floats:
    """Fields (N, 2, H, W) under a Gaussian filter that is cut off at 3 sigma, mirrored at their edges.

    Axis for axis a sparse matrix, which adds up each row from left to right for each column by itself: a
    dense product would add up in an order that depends on the machine and its threads.
    """
    height, width = fields.shape[2:]
    upright = np.ascontiguousarray(np.moveaxis(fields, 2, 0))
    upright = (mirrored_gaussian(height, sigma) @ upright.reshape(height, -1)).reshape(upright.shape)
    level = np.ascontiguousarray(np.moveaxis(upright, 3, 0))
    level = (mirrored_gaussian(width, sigma) @ level.reshape(width, -1)).reshape(level.shape)
    return np.ascontiguousarray(level.transpose(2, 3, 1, 0))


@lru_cache(maxsize=16)
def mirrored_gaussian(size: int, sigma: float) -> "csr_array":
    """The matrix of a Gaussian filter, cut off at 3 sigma, along an axis that is mirrored at its ends."""
    from scipy.sparse import csr_array  # here, because `equipoise serve` is installed without SciPy

    reach = int(3 * sigma + 0.5)
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2)) if reach else np.ones(1)
    matrix = np.zeros((size, size))
    places = mirrored(np.arange(-reach, size + reach), size, repeat_edge=True)
    for step, weight in enumerate(weights / weights.sum()):
        np.add.at(matrix, (np.arange(size), places[step : step + size]), weight)
    return csr_array(matrix.astype(np.float32))


def mirrored(places: Indices, size: int, repeat_edge: bool) -> Indices:
    """Places on an axis that goes on as its mirror image: 1 0 0 1 if its edge is repeated, else 1 0 1."""
    period = 2 * size if repeat_edge else 2 * size - 2
    back = period - 1 if repeat_edge else period
    within = places % period
    return np.where(within < size, within, back - within)


def looked_up(planes: Floats, y: Floats, x: Floats, repeat_edge: bool) -> Floats:
    """The planes (N, 3, H, W) at places y and x, (N, H, W), linear between pixels, mirrored outside."""
    count, channels, height, width = planes.shape
    up, left = np.floor(y), np.floor(x)
    top, first = int(up.min()), int(left.min())
    # Where each row and column is found, as tables, from the first to the last that is looked up.
    rows = mirrored(np.arange(top, int(up.max()) + 2), height, repeat_edge) * width
    columns = mirrored(np.arange(first, int(left.max()) + 2), width, repeat_edge)
    down, right = y - up, x - left
    found = np.empty_like(planes)
    for place in range(count):  # one by one, since the numbers of more do not fit into the cache
        row, column = up[place].astype(np.intp), left[place].astype(np.intp)
        row -= top
        column -= first
        above, before = rows.take(row), columns.take(column)
        row += 1
        column += 1
        below, after = rows.take(row), columns.take(column)
        plane = planes[place].reshape(channels, height * width)
        upper = between(plane.take(above + before, axis=1), plane.take(above + after, axis=1), right[place])
        lower = between(plane.take(below + before, axis=1), plane.take(below + after, axis=1), right[place])
        found[place] = between(upper, lower, down[place])
    return found
