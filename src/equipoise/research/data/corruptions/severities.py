"""The constants of the 15 corruptions at five tiers, for images of 64 and of 32 pixels, and for other sizes.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019: the constants of TinyImageNet-C (64 pixels) and CIFAR-10-C (32 pixels). Noise is in units of the
range [0, 1] of a pixel, lengths are in pixels but for elastic_transform, where they are parts of the side.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

Constants: TypeAlias = tuple[float, ...]

TIERS: tuple[int, ...] = (1, 2, 3, 4, 5)

_SNOW_FIELD = (
    (0.1, 0.2, 1, 0.6, 8, 3),
    (0.1, 0.2, 1, 0.5, 10, 4),
    (0.15, 0.3, 1.75, 0.55, 10, 4),
    (0.25, 0.3, 2.25, 0.6, 12, 6),
    (0.3, 0.3, 1.25, 0.65, 14, 12),
)


def _each(*values: float) -> tuple[Constants, ...]:
    """One constant a tier."""
    return tuple((value,) for value in values)


def _snow(*weights: float) -> tuple[Constants, ...]:
    """The field is the same at both sizes, the weight of the image is not."""
    return tuple((*field, weight) for field, weight in zip(_SNOW_FIELD, weights, strict=True))


def _scaled(*pairs: tuple[float, float]) -> tuple[Constants, ...]:
    """Two constants a tier, and how large the kernel or the texture is: a length, 1 at the table's size."""
    return tuple((*pair, 1.0) for pair in pairs)


_AT_64: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": _each(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _each(250, 100, 50, 30, 15),
    "impulse_noise": _each(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": _scaled((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": _each(1.05, 1.10, 1.15, 1.20, 1.25),
    "snow": _snow(0.8, 0.8, 0.7, 0.65, 0.6),
    "frost": _scaled((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": _each(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _each(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.3, 0.06),
        (0.1, 0.08, 0.06),
        (0.1, 0.03, 0.03),
        (0.16, 0.03, 0.02),
    ),
    "pixelate": _each(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _each(65, 58, 50, 40, 25),
}

_AT_32: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": _each(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _each(500, 250, 100, 75, 50),
    "impulse_noise": _each(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": _scaled((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": _AT_64["zoom_blur"],
    "snow": _snow(0.95, 0.9, 0.9, 0.85, 0.8),
    "frost": _scaled((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _each(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _each(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": _each(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _each(80, 65, 58, 50, 40),
}

TABLES: Mapping[int, Mapping[str, tuple[Constants, ...]]] = MappingProxyType({64: _AT_64, 32: _AT_32})
CORRUPTIONS: tuple[str, ...] = tuple(_AT_64)

# Which constants of a corruption are lengths in pixels.
LENGTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"defocus_blur": (2,), "glass_blur": (0, 1), "motion_blur": (0, 1), "snow": (2, 4, 5), "frost": (2,)}
)


def constants(name: str, tier: int, side: int) -> Constants:
    """The constants of a corruption for images whose shorter side has so many pixels.

    They are those of the table whose size is nearer as a ratio (up to 45 pixels that of 32, from 46 that of
    64), lengths times side / size. The images of ImageNet-C, of 224 pixels, have constants of their own;
    these are not they.
    """
    size = 32 if side * side < 32 * 64 else 64
    lengths = LENGTHS.get(name, ())
    values = TABLES[size][name][tier - 1]
    return tuple(value * side / size if place in lengths else value for place, value in enumerate(values))
