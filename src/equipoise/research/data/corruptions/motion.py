"""Motion blur along a line: motion_blur, and what snow uses of it (Hendrycks and Dietterich, ICLR 2019)."""

import math

import numpy as np

from equipoise.research.data.corruptions.arrays import Floats, Generators, Pixels, pixels

_NEGLIGIBLE = 2.0**-24  # of the largest weight: nothing in a float32 sum


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
