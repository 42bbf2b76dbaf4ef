"""Pictures to corrupt, drawn here: gradients, shapes and texture, with the frequencies of a photograph."""

from functools import cache

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from equipoise.research.data.corruptions import CORRUPTIONS

Images = NDArray[np.uint8]
Reals = NDArray[np.float64]

# Whose outcome depends on the seed.
RANDOM = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
)
FIXED = tuple(name for name in CORRUPTIONS if name not in RANDOM)


def pictures(count: int, height: int, width: int | None = None, seed: int = 0) -> Images:
    """Different pictures of one size."""
    return np.stack([_picture(height, width or height, place) for place in range(seed, seed + count)])


@cache
def _picture(height: int, width: int, seed: int) -> Images:
    generator = np.random.default_rng([seed, height, width])
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    sky = generator.uniform(0.2, 0.9, (2, 3))
    picture = sky[0] + (sky[1] - sky[0]) * (y * generator.random() + x * generator.random())[..., None]
    for _ in range(8):
        (top, left), size = generator.random(2), generator.uniform(0.05, 0.3)
        disk = np.hypot(y - top, x - left) < size
        box = (abs(y - top) < size) & (abs(x - left) < size / 3)
        picture[disk if generator.random() < 0.5 else box] = generator.random(3)
    for sigma, contrast in ((0.0, 0.02), (1.0, 0.05), (4.0, 0.05)):
        noise = scipy.ndimage.gaussian_filter(generator.normal(size=(height, width)), sigma)
        picture += (contrast * noise / noise.std())[..., None]
    levels: Reals = np.clip(picture, 0, 1) * 255
    return levels.astype(np.uint8)


def flat(count: int, side: int, level: int) -> Images:
    """Pictures of one grey."""
    return np.full((count, side, side, 3), level, dtype=np.uint8)


def assert_rounded(came: Images, expected: Reals, tolerance: float = 0.01) -> None:
    """The levels nearest to the expected values, in units of 1 / 255, clipped."""
    assert came.shape == expected.shape
    assert came.dtype == np.uint8
    off = np.abs(came - np.clip(expected, 0, 255)).max()
    assert off <= 0.5 + tolerance, f"off by {off}"
