"""brightness, contrast, pixelate and jpeg_compression against colorsys, formulas and Pillow."""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from equipoise.research.data.corruptions import TIERS, corrupt, jpeg
from tests.research.data.corruptions.pictures import Images, assert_rounded, flat, pictures

BRIGHTNESS = {64: (0.1, 0.2, 0.3, 0.4, 0.5), 32: (0.05, 0.1, 0.15, 0.2, 0.3)}
CONTRAST = {64: (0.4, 0.3, 0.2, 0.1, 0.05), 32: (0.75, 0.5, 0.4, 0.3, 0.15)}
PIXELATE = {64: (0.9, 0.8, 0.7, 0.6, 0.5), 32: (0.95, 0.9, 0.85, 0.75, 0.65)}
QUALITY = {64: (65, 58, 50, 40, 25), 32: (80, 65, 58, 50, 40)}
each_size = pytest.mark.parametrize("size", [32, 64])
each_tier = pytest.mark.parametrize("tier", TIERS)


@each_size
@each_tier
def test_brightness_adds_to_the_value_of_hsv(tier: int, size: int) -> None:
    image = pictures(1, size, seed=tier)
    image[0, 0, :8] = [
        [0, 0, 0],
        [255, 255, 255],
        [1, 0, 0],
        [0, 0, 1],
        [128] * 3,
        [255, 0, 0],
        [1, 2, 3],
        [9, 9, 8],
    ]
    shift = BRIGHTNESS[size][tier - 1]
    expected = np.empty((size * size, 3))
    for place, (r, g, b) in enumerate(image.reshape(-1, 3) / 255):
        hue, saturation, value = colorsys.rgb_to_hsv(r, g, b)
        expected[place] = colorsys.hsv_to_rgb(hue, saturation, min(value + shift, 1))
    assert_rounded(corrupt(image, "brightness", tier, [0]), 255 * expected.reshape(image.shape))


def test_brightness_makes_grey_of_black_and_leaves_white() -> None:
    assert (corrupt(flat(1, 64, 0), "brightness", 2, [0]) == 51).all()
    assert (corrupt(flat(1, 64, 255), "brightness", 2, [0]) == 255).all()


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (40, 64)])
@each_tier
def test_contrast_pulls_each_channel_to_its_mean(tier: int, size: tuple[int, int]) -> None:
    images = pictures(3, *size)
    x = images.astype(float)
    means = x.mean(axis=(1, 2), keepdims=True)
    factor = CONTRAST[64 if size[0] > 45 else 32][tier - 1]
    assert_rounded(corrupt(images, "contrast", tier, [0, 1, 2]), (x - means) * factor + means)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (40, 64), (96, 50)])
@each_tier
def test_pixelate_is_what_pillow_makes_with_boxes(tier: int, size: tuple[int, int]) -> None:
    height, width = size
    images = pictures(2, height, width)
    part = PIXELATE[64 if min(size) > 45 else 32][tier - 1]
    for came, image in zip(corrupt(images, "pixelate", tier, [0, 1]), images, strict=True):
        small = Image.fromarray(image).resize((int(width * part), int(height * part)), Image.Resampling.BOX)
        assert np.array_equal(came, np.asarray(small.resize((width, height), Image.Resampling.BOX)))


def reopened(image: Images, quality: int) -> Images:
    file = BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=quality)
    file.seek(0)
    return np.asarray(Image.open(file).convert("RGB"))


@each_size
@each_tier
def test_jpeg_compression_is_pillows(tier: int, size: int) -> None:
    images = pictures(2, size)
    expected = [reopened(image, QUALITY[size][tier - 1]) for image in images]
    assert np.array_equal(corrupt(images, "jpeg_compression", tier, [0, 1]), expected)


@pytest.mark.parametrize("quality", [1, 85, 100])
def test_jpeg_of_any_quality(quality: int) -> None:
    images = pictures(3, 33, 50)
    before = images.copy()
    assert np.array_equal(jpeg(images, quality), [reopened(image, quality) for image in images])
    assert np.array_equal(images, before)
