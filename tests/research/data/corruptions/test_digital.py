"""brightness, contrast, pixelate, JPEG and elastic_transform against colorsys, Pillow, numpy and scipy."""

import colorsys
from collections.abc import Sequence
from io import BytesIO

import numpy as np
import pytest
import scipy.ndimage
from PIL import Image

from equipoise.research.data.corruptions import corrupt, jpeg
from equipoise.research.data.corruptions.arrays import generators
from equipoise.research.data.corruptions.digital import affine, elastic_transform, looked_up, smoothed_fields
from tests.research.data.corruptions.pictures import (
    PUBLISHED,
    Images,
    Reals,
    assert_rounded,
    each_size,
    each_tier,
    flat,
    pictures,
)


@each_size
@each_tier
def test_brightness_adds_to_the_value_of_hsv(tier: int, size: int) -> None:
    image = pictures(1, size, seed=tier)
    image[0, 0, :4] = [[0, 0, 0], [255, 255, 255], [1, 0, 0], [0, 0, 1]]
    image[0, 0, 4:8] = [[128, 128, 128], [255, 0, 0], [1, 2, 3], [9, 9, 8]]
    shift = PUBLISHED[size]["brightness"][tier - 1][0]
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
    factor = PUBLISHED[64 if size[0] > 45 else 32]["contrast"][tier - 1][0]
    assert_rounded(corrupt(images, "contrast", tier, [0, 1, 2]), (x - means) * factor + means)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (40, 64), (96, 50)])
@each_tier
def test_pixelate_is_what_pillow_makes_with_boxes(tier: int, size: tuple[int, int]) -> None:
    height, width = size
    images = pictures(2, height, width)
    part = PUBLISHED[64 if min(size) > 45 else 32]["pixelate"][tier - 1][0]
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
    expected = [reopened(image, round(PUBLISHED[size]["jpeg_compression"][tier - 1][0])) for image in images]
    assert np.array_equal(corrupt(images, "jpeg_compression", tier, [0, 1]), expected)


@pytest.mark.parametrize("quality", [1, 85, 100])
def test_jpeg_of_any_quality(quality: int) -> None:
    images = pictures(3, 33, 50)
    before = images.copy()
    assert np.array_equal(jpeg(images, quality), [reopened(image, quality) for image in images])
    assert np.array_equal(images, before)


def looked_up_by_scipy(image: Reals, y: Reals, x: Reals, mode: str) -> Reals:
    planes = [scipy.ndimage.map_coordinates(image[..., c], [y, x], order=1, mode=mode) for c in range(3)]
    return np.stack(planes, axis=-1)


def back(points: Reals, moved: Reals, height: int, width: int) -> tuple[Reals, Reals]:
    """Where each place came from, by the affine map that takes `moved` to `points`."""
    matrix = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    places = np.stack([y, x, np.ones_like(y)], axis=-1) @ matrix
    return places[..., 0], places[..., 1]


def triangle(height: int, width: int) -> Reals:
    y, x, third = height // 2, width // 2, min(height, width) // 3
    return np.array([[y + third, x + third], [y + third, x - third], [y - third, x - third]], dtype=float)


def by_hand(image: Images, seed: int, constants: Sequence[float]) -> Reals:
    height, width = image.shape[:2]
    side = min(height, width)
    strength, smoothing, shift = (side * constant for constant in constants)
    (generator,) = generators("elastic_transform", [seed])
    points = triangle(height, width)
    moves = generator.uniform(-shift, shift, (3, 2))
    warped = looked_up_by_scipy(image.astype(float), *back(points, points + moves, height, width), "mirror")
    if strength == 0:
        return warped
    fields = 2 * generator.random((2, height, width), dtype=np.float32).astype(float) - 1
    down, across = (strength * scipy.ndimage.gaussian_filter(f, smoothing, truncate=3) for f in fields)
    y, x = np.mgrid[0:height, 0:width]
    return looked_up_by_scipy(warped, y + down, x + across, "reflect")


@each_size
@each_tier
def test_elastic_is_an_affine_map_and_displacements(tier: int, size: int) -> None:
    images = pictures(2, size)
    came = corrupt(images, "elastic_transform", tier, [6, 7])
    for one, image, seed in zip(came, images, (6, 7), strict=True):
        assert_rounded(one, by_hand(image, seed, PUBLISHED[size]["elastic_transform"][tier - 1]))


def test_lengths_are_parts_of_the_shorter_side() -> None:
    image = pictures(1, 40, 64)
    came = corrupt(image, "elastic_transform", 3, [6])
    assert_rounded(came[0], by_hand(image[0], 6, PUBLISHED[32]["elastic_transform"][2]))


def test_a_long_image_is_looked_up_far_outside() -> None:
    image = pictures(1, 12, 600)
    for seed in range(8):
        came = corrupt(image, "elastic_transform", 1, [seed])
        assert_rounded(came[0], by_hand(image[0], seed, PUBLISHED[32]["elastic_transform"][0]), tolerance=0.2)


def test_nothing_moves_where_all_is_zero() -> None:
    images = pictures(2, 32, 45)
    assert np.array_equal(elastic_transform(images, generators("fog", [0, 1]), 0, 0, 0), images)
    assert np.array_equal(elastic_transform(images, generators("fog", [0, 1]), 0, 0.3, 0), images)


def test_points_move_where_they_are_told() -> None:
    image = flat(1, 60, 0)
    image[0, 50, 50] = 255  # the first point: the centre and a third of the side
    moves = np.zeros((1, 3, 2))
    moves[0, 0] = [4, -3]
    planes = np.moveaxis(image, -1, 1).astype(np.float32)
    came = looked_up(planes, *affine(60, 60, moves), repeat_edge=False)
    assert np.unravel_index(came[0, 0].argmax(), (60, 60)) == (54, 47)
    y, x = affine(60, 60, moves)
    assert (y[0, 10, 10], x[0, 10, 10]) == pytest.approx((10, 10), abs=1e-4)  # the third did not move
    assert (y[0, 50, 10], x[0, 50, 10]) == pytest.approx((50, 10), abs=1e-4)


@pytest.mark.parametrize(("repeat_edge", "mode"), [(True, "reflect"), (False, "mirror")])
def test_places_outside_are_mirrored(repeat_edge: bool, mode: str) -> None:
    generator = np.random.default_rng(0)
    image = pictures(1, 12, 17)[0].astype(float)
    y, x = generator.uniform(-20, 30, (12, 17)), generator.uniform(-30, 45, (12, 17))
    planes = np.moveaxis(image, -1, 0)[None].astype(np.float32)
    came = looked_up(planes, y[None].astype(np.float32), x[None].astype(np.float32), repeat_edge)
    expected = np.moveaxis(looked_up_by_scipy(image, y, x, mode), -1, 0)
    assert came[0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("sigma", [0.1, 0.6, 1.92, 5.12, 19.2])
def test_fields_are_smoothed_by_a_gaussian_filter(sigma: float) -> None:
    fields = np.random.default_rng(0).uniform(-1, 1, (3, 2, 20, 33)).astype(np.float32)
    expected = scipy.ndimage.gaussian_filter(
        fields.astype(float), (0, 0, sigma, sigma), mode="reflect", truncate=3
    )
    assert smoothed_fields(fields, sigma) == pytest.approx(expected, abs=1e-5)
