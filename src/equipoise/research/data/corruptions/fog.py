"""Fog: a plasma fractal before the image (Hendrycks and Dietterich, ICLR 2019)."""

import numpy as np

from equipoise.research.data.corruptions.arrays import Floats, Generators, Pixels, in_each_channel, pixels


def fog(images: Pixels, generators: Generators, density: float, decay: float) -> Pixels:
    """Add a plasma fractal and darken: (x + density · plasma) · m / (m + density), m the image's maximum."""
    height, width = images.shape[1:3]
    size = 1 << (max(height, width) - 1).bit_length()
    plasma = plasmas(size, generators, decay)[:, :height, :width]
    brightest = images.max(axis=(1, 2, 3)).astype(np.float32)[:, None, None, None]
    foggy = in_each_channel(plasma * np.float32(255 * density))
    foggy += images
    foggy *= brightest / (brightest + np.float32(255 * density))
    return pixels(foggy)


def plasmas(size: int, generators: Generators, decay: float) -> Floats:
    """Fields (N, size, size) in [0, 1] by the diamond-square algorithm on a torus; size is a power of two.

    Level for level, the centres of the squares become the mean of their corners, then the centres of the
    diamonds that of theirs, each plus w² · U(−1, 1); after each level the grid is twice as fine and w is
    divided by `decay`. That w is squared is what the original does.
    """
    # Every place is drawn once: one number for each. Only ratios of w matter, since the outcome is scaled.
    draws = np.stack([g.random((size, size), dtype=np.float32) for g in generators])
    draws *= 2
    draws -= 1
    field = np.zeros_like(draws)
    step, wibble = size, 1.0
    while step >= 2:
        half, amplitude = step // 2, np.float32(wibble**2)
        corners = field[:, ::step, ::step]
        squares = corners + np.roll(corners, -1, axis=1)
        squares = squares + np.roll(squares, -1, axis=2)
        middle = (slice(None), slice(half, None, step), slice(half, None, step))
        field[middle] = squares * np.float32(0.25) + draws[middle] * amplitude
        centres = field[middle]
        for axis, place in (
            (1, (slice(None), slice(None, None, step), slice(half, None, step))),
            (2, (slice(None), slice(half, None, step), slice(None, None, step))),
        ):
            # A diamond on an edge of squares: the ends of the edge, and the centres on both sides of it.
            diamonds = corners + np.roll(corners, -1, axis=3 - axis)
            diamonds += centres
            diamonds += np.roll(centres, 1, axis=axis)
            field[place] = diamonds * np.float32(0.25) + draws[place] * amplitude
        step, wibble = half, wibble / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field
