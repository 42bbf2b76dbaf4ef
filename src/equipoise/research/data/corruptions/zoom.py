"""Zooming: zoom_blur, and what snow uses of it (Hendrycks and Dietterich, ICLR 2019)."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from equipoise.research.data.corruptions.arrays import Floats, Indices, Pixels, Reals, between, pixels

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
def mean_zoom(height: int, width: int, factors: tuple[float, ...]) -> csr_array:
    """The matrix from the pixels of an image to those of the mean of it and its zooms."""
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
