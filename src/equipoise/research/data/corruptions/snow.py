"""Falling snow: snow (Hendrycks and Dietterich, ICLR 2019)."""

import numpy as np

from equipoise.research.data.corruptions.arrays import Floats, Generators, Pixels, in_each_channel, pixels
from equipoise.research.data.corruptions.motion import along_lines
from equipoise.research.data.corruptions.zoom import enlarged, zoomed

_RED, _GREEN, _BLUE = np.float32(0.299), np.float32(0.587), np.float32(0.114)


def snow(
    images: Pixels,
    generators: Generators,
    mean: float,
    scale: float,
    flake: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Pixels:
    """Whiten the image, and add flakes that fall, and the same flakes turned by 180°.

    flakes = a field of N(mean, scale), zoomed into by `flake`, 0 below `threshold`, at most 1, blurred by a
             motion (radius, sigma) at an angle of U(−135°, −45°)
    out = weight · x + (1 − weight) · max(x, 1.5 · grey + 0.5) + flakes + turned flakes
    """
    height, width = images.shape[1:3]
    rows, columns = zoomed(height, max(1.0, flake)), zoomed(width, max(1.0, flake))
    # Of the field, only the places that the zoom shows are drawn.
    shape = (rows.shown, columns.shown)
    angles = [g.uniform(-135, -45) for g in generators]  # first: the field is of another shape at other tiers
    fields = np.stack([g.standard_normal(shape, dtype=np.float32) for g in generators])
    fields *= np.float32(scale)
    fields += np.float32(mean)
    fields = enlarged(fields, rows, columns)
    fields[fields < np.float32(threshold)] = 0
    np.minimum(fields, 1, out=fields)
    flakes = along_lines(fields, angles, radius, sigma, channels=1)
    fallen = in_each_channel((flakes + flakes[:, ::-1, ::-1]) * np.float32(255))
    return pixels(whitened(images, weight) + fallen)


def whitened(images: Pixels, weight: float) -> Floats:
    """A white sky, weight · x + (1 − weight) · max(x, 1.5 · grey + 0.5), in units of 1 / 255."""
    values = images.astype(np.float32)
    grey = values[..., 0] * _RED
    grey += values[..., 1] * _GREEN
    grey += values[..., 2] * _BLUE
    white = in_each_channel(grey * np.float32(1.5) + np.float32(127.5))
    np.maximum(white, values, out=white)
    white *= np.float32(1 - weight)
    values *= np.float32(weight)
    values += white
    return values
