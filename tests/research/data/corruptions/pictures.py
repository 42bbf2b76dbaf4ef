"""Pictures to corrupt, drawn here, and the constants of the published scripts, written out.

Pictures have gradients, shapes and texture, with the frequencies of a photograph.
"""

from functools import cache

import numpy as np
import pytest
import scipy.ndimage
from numpy.typing import NDArray

from equipoise.research.data.corruptions import CORRUPTIONS, TIERS

Images = NDArray[np.uint8]
Reals = NDArray[np.float64]

_AT_64 = """
gaussian_noise .04 | .08 | .12 | .15 | .18
shot_noise 250 | 100 | 50 | 30 | 15
impulse_noise .01 | .02 | .05 | .08 | .14
defocus_blur .5 .6 1 | 1 .1 1 | 1.5 .1 1 | 2.5 .01 1 | 3 .1 1
glass_blur .1 1 1 | .5 1 1 | .6 1 2 | .7 2 1 | .9 2 2
motion_blur 10 1 | 10 1.5 | 10 2 | 10 2.5 | 12 3
zoom_blur 1.05 | 1.10 | 1.15 | 1.20 | 1.25
snow .1 .2 1 .6 8 3 .8 | .1 .2 1 .5 10 4 .8 | .15 .3 1.75 .55 10 4 .7\
 | .25 .3 2.25 .6 12 6 .65 | .3 .3 1.25 .65 14 12 .6
frost 1 .3 1 | .9 .4 1 | .8 .45 1 | .75 .5 1 | .7 .55 1
fog .4 3 | .7 3 | 1 2.5 | 1.5 2 | 2 1.75
brightness .1 | .2 | .3 | .4 | .5
contrast .4 | .3 | .2 | .1 | .05
elastic_transform 0 0 .08 | .05 .3 .06 | .1 .08 .06 | .1 .03 .03 | .16 .03 .02
pixelate .9 | .8 | .7 | .6 | .5
jpeg_compression 65 | 58 | 50 | 40 | 25
"""

_AT_32 = """
gaussian_noise .04 | .06 | .08 | .09 | .10
shot_noise 500 | 250 | 100 | 75 | 50
impulse_noise .01 | .02 | .03 | .05 | .07
defocus_blur .3 .4 1 | .4 .5 1 | .5 .6 1 | 1 .2 1 | 1.5 .1 1
glass_blur .05 1 1 | .25 1 1 | .4 1 1 | .25 1 2 | .4 1 2
motion_blur 6 1 | 6 1.5 | 6 2 | 8 2 | 9 2.5
zoom_blur 1.05 | 1.10 | 1.15 | 1.20 | 1.25
snow .1 .2 1 .6 8 3 .95 | .1 .2 1 .5 10 4 .9 | .15 .3 1.75 .55 10 4 .9\
 | .25 .3 2.25 .6 12 6 .85 | .3 .3 1.25 .65 14 12 .8
frost 1 .2 1 | 1 .3 1 | .9 .4 1 | .85 .4 1 | .75 .45 1
fog .2 3 | .5 3 | .75 2.5 | 1 2 | 1.5 1.75
brightness .05 | .1 | .15 | .2 | .3
contrast .75 | .5 | .4 | .3 | .15
elastic_transform 0 0 .08 | .05 .2 .07 | .08 .06 .06 | .1 .04 .05 | .1 .03 .03
pixelate .95 | .9 | .85 | .75 | .65
jpeg_compression 80 | 65 | 58 | 50 | 40
"""


def _read(table: str) -> dict[str, list[tuple[float, ...]]]:
    rows = (line.split(maxsplit=1) for line in table.strip().splitlines())
    return {name: [tuple(map(float, tier.split())) for tier in tiers.split("|")] for name, tiers in rows}


PUBLISHED = {64: _read(_AT_64), 32: _read(_AT_32)}
"""The constants of the published scripts: of a size, a corruption and its tiers."""
each_size = pytest.mark.parametrize("size", [32, 64])
each_tier = pytest.mark.parametrize("tier", TIERS)

# Whose outcome depends on the seed.
RANDOM = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform"),
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
