"""The 15 corruptions of TinyImageNet-C at five tiers, for batches of images of any size.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019. docs/corruptions.md says what each does, and where these differ from the original.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import OptionError
from equipoise.options import integer, one_of
from equipoise.research.data.corruptions.arrays import Pixels, generators
from equipoise.research.data.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from equipoise.research.data.corruptions.digital import (
    brightness,
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
)
from equipoise.research.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from equipoise.research.data.corruptions.severities import CORRUPTIONS, TIERS, constants
from equipoise.research.data.corruptions.weather import fog, frost, snow

__all__ = ["CORRUPTIONS", "DETERMINISTIC", "RANDOM", "TIERS", "corrupt", "jpeg"]

SMALLEST = 8  # pixels of a side
_TOGETHER = 16 * 64 * 64  # pixels that are worked on at once: more take longer, for want of cache

_RANDOM = (
    *(gaussian_noise, shot_noise, impulse_noise, glass_blur, motion_blur),
    *(snow, frost, fog, elastic_transform),
)
_DETERMINISTIC = (defocus_blur, zoom_blur, brightness, contrast, pixelate, jpeg_compression)
RANDOM: Mapping[str, Callable[..., Pixels]] = MappingProxyType({each.__name__: each for each in _RANDOM})
"""Functions of images, generators and constants."""
DETERMINISTIC: Mapping[str, Callable[..., Pixels]] = MappingProxyType(
    {each.__name__: each for each in _DETERMINISTIC}
)
"""Functions of images and constants."""


def corrupt(images: NDArray[np.uint8], name: str, tier: int, seeds: Sequence[int]) -> NDArray[np.uint8]:
    """Corrupt images (N, H, W, 3), or grey ones (N, H, W, 1), each with the random numbers of its own seed.

    What becomes of an image depends on its pixels, the corruption's name, the tier (1 to 5) and its seed, and
    on nothing else, to the bit: not on the other images, nor on any global state. Values are computed in
    float32, rounded to the nearest level and clipped (the original rounds down). `severities.constants` has
    what a tier is at other sizes than 64 and 32 pixels. A grey image is corrupted as one of three equal
    channels, of which green is kept: noise is as strong as in a channel of a colour image.

    Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019.
    """
    _check_images(images)
    one_of("name", name, CORRUPTIONS)
    tier = integer("tier", tier, low=TIERS[0], high=TIERS[-1])
    checked = _checked_seeds(seeds, len(images))
    height, width = images.shape[1:3]
    values = constants(name, tier, min(height, width))
    together = max(1, _TOGETHER // (height * width))
    corrupted = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), together):
        part = slice(start, start + together)
        batch = _in_colour(images[part])
        if name in RANDOM:
            made = RANDOM[name](batch, generators(name, checked[part]), *values)
        else:
            made = DETERMINISTIC[name](batch, *values)
        corrupted[part] = _in_channels(made, images.shape[3])
    return corrupted


def jpeg(images: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Encode each image as JPEG of a quality from 1 to 100 and decode it; the official files have 85."""
    _check_images(images)
    made = jpeg_compression(_in_colour(images), integer("quality", quality, low=1, high=100))
    return _in_channels(made, images.shape[3])


def _in_colour(images: NDArray[np.uint8]) -> Pixels:
    """Three channels, in one block of memory."""
    return np.ascontiguousarray(np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images)


def _in_channels(images: Pixels, channels: int) -> NDArray[np.uint8]:
    """The green channel for a grey image, else all."""
    return images[..., 1:2] if channels == 1 else images


def _check_images(images: NDArray[np.uint8]) -> None:
    expected = (
        "expected images as a uint8 array (N, H, W, 3) or (N, H, W, 1) "
        f"with sides of {SMALLEST} pixels or more"
    )
    if not isinstance(images, np.ndarray):
        raise OptionError(f"{expected}, got {type(images).__name__}")
    right = images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in (1, 3)
    if not right or min(images.shape[1:3]) < SMALLEST:
        raise OptionError(f"{expected}, got {images.dtype} of shape {images.shape}")


def _checked_seeds(seeds: Sequence[int], count: int) -> list[int]:
    expected = f"expected seeds as {count} whole numbers >= 0, one for each image"
    try:
        checked = [index(seed) for seed in seeds]
    except TypeError:
        raise OptionError(f"{expected}, got {seeds!r}") from None
    if len(checked) != count:
        raise OptionError(f"{expected}, got {len(checked)}")
    if min(checked, default=0) < 0:
        raise OptionError(f"{expected}, got {min(checked)}")
    return checked
