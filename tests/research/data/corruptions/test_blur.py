"""defocus_blur, motion_blur, zoom_blur and glass_blur against slow versions, written out here or scipy's."""

import math

import numpy as np
import pytest
import scipy.ndimage

from equipoise.research.data.corruptions import corrupt
from equipoise.research.data.corruptions.arrays import generators
from equipoise.research.data.corruptions.blur import (
    along_lines,
    defocus_blur,
    disk,
    fronts,
    glass_blur,
    motion_weights,
    one_by_one,
    resized_kernel,
    shuffled,
    smoothed_images,
    zoom_blur,
)
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


def disk_of_17(radius: float, antialias: float) -> Reals:
    """A disk on 17 × 17 places, filtered by 3 × 3 Gaussian weights."""
    kernel = np.zeros((17, 17))
    for y in range(17):
        for x in range(17):
            kernel[y, x] = (y - 8) ** 2 + (x - 8) ** 2 <= radius**2
    bell = np.array([math.exp(-(d**2) / (2 * antialias**2)) for d in (-1, 0, 1)])
    weights = np.outer(bell, bell) / bell.sum() ** 2
    filtered: Reals = scipy.ndimage.correlate(kernel / kernel.sum(), weights, mode="constant")
    return filtered


@each_size
@each_tier
def test_defocus_is_a_convolution_with_a_disk(tier: int, size: int) -> None:
    images = pictures(2, size)
    kernel = disk_of_17(*PUBLISHED[size]["defocus_blur"][tier - 1][:2])
    expected = scipy.ndimage.convolve(images.astype(float), kernel[None, :, :, None], mode="mirror")
    assert_rounded(corrupt(images, "defocus_blur", tier, [0, 1]), expected)


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.75, 1.0, 1.25, 3.5])
def test_a_disk_of_another_size_is_the_disk_enlarged(scale: float) -> None:
    kernel = disk(3, 0.1)
    assert kernel.sum() == pytest.approx(1)
    reach = len(kernel) // 2
    outer = math.ceil((reach + 0.5) * scale - 0.5)
    # Each weight is spread over a square, here over 600 × 600 points, which fall into pixels.
    parts = (np.arange(600) + 0.5) / 600 - 0.5
    fallen = np.rint((np.arange(-reach, reach + 1)[:, None] + parts) * scale).astype(int) + outer
    counts = np.stack([np.bincount(row, minlength=2 * outer + 1) for row in fallen]) / 600
    assert resized_kernel(kernel, scale) == pytest.approx(counts.T @ kernel @ counts, abs=0.002)
    assert resized_kernel(kernel, 1.0) == pytest.approx(kernel)


def test_many_pixels_of_one_weight_do_not_overflow() -> None:
    white = flat(1, 224, 255)
    assert (defocus_blur(white, 10.5, 0.35) == 255).all()  # 349 pixels of nearly one weight
    assert (corrupt(white, "defocus_blur", 5, [0]) == 255).all()


def test_motion_weights() -> None:
    expected = [math.exp(-(i**2) / (2 * 2.5**2)) for i in range(21)]
    weights = motion_weights(10, 2.5)
    assert weights == pytest.approx(np.array(expected[: len(weights)]) / sum(expected), rel=1e-5)
    assert sum(expected[len(weights) :]) < 1e-6 * sum(expected)
    assert len(motion_weights(14, 12)) == 29  # none of these vanishes


@pytest.mark.parametrize("angle", [0.0, 30.0, -44.0, -100.0, 135.0, 20.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_motion_is_a_sum_of_pixels_along_a_line(angle: float, channels: int) -> None:
    image = pictures(1, 13, 17)[0, :, :, :channels].astype(float)
    weights = [math.exp(-(i**2) / (2 * 4.0**2)) for i in range(2 * 5 + 1)]
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    expected = np.zeros_like(image)
    for y in range(13):
        for x in range(17):
            for i, weight in enumerate(weights):
                row = min(max(y + math.ceil(i * sine - 0.5), 0), 12)
                column = min(max(x + math.ceil(i * cosine - 0.5), 0), 16)
                expected[y, x] += weight / sum(weights) * image[row, column]
    rows = image.reshape(1, 13, 17 * channels).astype(np.float32)
    came = along_lines(rows, [angle], 5, 4.0, channels)
    assert came.reshape(expected.shape) == pytest.approx(expected, abs=1e-3)


@each_size
@each_tier
def test_motion_draws_a_pixel_out_to_one_side_within_45_degrees(tier: int, size: int) -> None:
    images = flat(40, size, 0)
    middle = size // 2
    images[:, middle, middle] = 255
    came = corrupt(images, "motion_blur", tier, range(40)).astype(float)
    radius, sigma = PUBLISHED[size]["motion_blur"][tier - 1]
    bell = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    first = 255 * bell[0] / bell.sum()
    assert came[:, middle, middle] == pytest.approx(first, abs=0.5)
    assert came.sum(axis=(1, 2)) == pytest.approx(255, abs=5)
    y, x = np.mgrid[-middle : size - middle, -middle : size - middle]
    trail = (came > 0).any(axis=(0, 3))
    assert (x[trail] <= 0).all()  # what is to the right of a pixel comes into it
    assert (abs(y[trail]) <= abs(x[trail])).all()
    sums = came.sum(axis=3)
    slopes = (sums * y).sum(axis=(1, 2)) / (sums * x).sum(axis=(1, 2))
    assert slopes.min() < -0.6 and slopes.max() > 0.6 and abs(np.mean(slopes)) < 0.4
    reach = -(sums * x).sum(axis=(1, 2)) / sums.sum(axis=(1, 2))
    mean_step = (bell * np.arange(len(bell))).sum() / bell.sum()
    assert reach.max() <= mean_step * 1.1 + 0.1
    assert reach.min() >= mean_step * math.cos(math.pi / 4) * 0.8


def zoomed(image: Images, factor: float) -> Reals:
    """The middle, zoomed into by scipy, and trimmed to the size of the image."""
    size = image.shape[:2]
    shown = [math.ceil(side / factor) for side in size]
    starts = [(side - part) // 2 for side, part in zip(size, shown, strict=True)]
    middle = image[starts[0] : starts[0] + shown[0], starts[1] : starts[1] + shown[1]].astype(float)
    large: Reals = scipy.ndimage.zoom(middle, (factor, factor, 1), order=1)
    tops = [(have - want) // 2 for have, want in zip(large.shape, size, strict=False)]
    return large[tops[0] : tops[0] + size[0], tops[1] : tops[1] + size[1]]


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (48, 48), (40, 64)])
@each_tier
def test_zoom_is_the_mean_of_zooms(tier: int, size: tuple[int, int]) -> None:
    images = pictures(2, *size)
    factors = [1 + step / 100 for step in range(round(100 * PUBLISHED[64]["zoom_blur"][tier - 1][0]) - 99)]
    assert len(factors) == 5 * tier + 1
    expected = [np.mean([image, *(zoomed(image, factor) for factor in factors)], axis=0) for image in images]
    assert_rounded(corrupt(images, "zoom_blur", tier, [0, 1]), np.stack(expected))


def test_large_images_are_zoomed_one_by_one_alike() -> None:
    images = pictures(2, 40, 64)
    factors = tuple(1 + step / 100 for step in range(11))
    assert_rounded(zoom_blur(images, 1.10), one_by_one(images, factors).astype(float))
    large = pictures(1, 257)
    assert_rounded(zoom_blur(large, 1.02), one_by_one(large, factors[:3]).astype(float))
    expected = np.mean([large[0], *(zoomed(large[0], factor) for factor in factors[:3])], axis=0)
    assert_rounded(zoom_blur(large, 1.02), expected[None])


@pytest.mark.parametrize("distance", [1, 2, 3])
@pytest.mark.parametrize("sweeps", [1, 2])
def test_swaps_at_once_are_swaps_one_after_another(distance: int, sweeps: int) -> None:
    height, width, seeds = 12, 15, [0, 1, 2]
    came = shuffled((3, height, width), generators("glass_blur", seeds), distance, sweeps)
    places = np.concatenate(fronts(height, width, distance))
    inner = [(h, w) for h in range(distance, height - distance) for w in range(distance, width - distance)]
    assert sorted(places) == [h * width + w for h, w in inner]
    for image, generator in enumerate(generators("glass_blur", seeds)):
        here = np.arange(height * width).reshape(height, width)
        for _ in range(sweeps):
            size = (2, len(places))
            down, across = generator.integers(-distance, distance, size, dtype=np.int16, endpoint=True)
            moves = {place: (int(d), int(a)) for place, d, a in zip(places, down, across, strict=True)}
            for h in range(height - 1 - distance, distance - 1, -1):
                for w in range(width - 1 - distance, distance - 1, -1):
                    d, a = moves[h * width + w]
                    here[h, w], here[h + d, w + a] = here[h + d, w + a], here[h, w]
        expected = here.ravel() + image * height * width
        assert np.array_equal(came[image * height * width : (image + 1) * height * width], expected)


@pytest.mark.parametrize("distance", [1, 2])
def test_without_smoothing_pixels_only_change_places_nearby(distance: int) -> None:
    rows, columns = np.mgrid[0:64, 0:64].astype(np.uint8)
    image = np.stack([rows, columns, rows ^ columns], axis=-1)[None]
    came = glass_blur(image, generators("glass_blur", [5]), 0.0, distance, 1)[0]
    assert sorted(map(tuple, came.reshape(-1, 3))) == sorted(map(tuple, image.reshape(-1, 3)))
    moved = np.abs(came[..., :2].astype(int) - image[0, ..., :2]).max(axis=-1)
    share = 1 - 1 / (2 * distance + 1) ** 2  # of the pixels, that draw another place than their own
    assert (moved > 0).mean() > 0.8 * share
    assert distance * 0.4 < moved.mean() < distance * 1.5
    assert np.quantile(moved, 0.99) <= 6 * distance


def test_moves_are_uniform_in_all_directions() -> None:
    """Of the pixel that is swapped last, which stays where it came from."""
    seeds = range(2000)
    came = shuffled((2000, 8, 8), generators("glass_blur", seeds), 1, 1).reshape(2000, 64) - (
        np.arange(2000)[:, None] * 64
    )
    home = came == 9  # the pixel of row 1 and column 1, which may have been moved before
    first = np.array([np.flatnonzero(row)[0] for row in home])
    counts = np.bincount(first, minlength=64)[[0, 1, 2, 8, 9, 10, 16, 17, 18]]
    assert (counts > 100).all()


@pytest.mark.parametrize("sigma", [0.1, 0.25, 0.4, 0.7, 0.9, 2.0])
def test_smoothing_is_a_gaussian_filter(sigma: float) -> None:
    images = pictures(2, 24, 31).astype(np.float32)
    expected = scipy.ndimage.gaussian_filter(
        images.astype(float), (0, sigma, sigma, 0), mode="nearest", truncate=4
    )
    assert smoothed_images(images, sigma) == pytest.approx(expected, abs=1e-3)


@each_size
@each_tier
def test_glass_is_smoothing_swapping_smoothing(tier: int, size: int) -> None:
    sigma, distance, sweeps = PUBLISHED[size]["glass_blur"][tier - 1]
    images, seeds = pictures(2, size), [8, 9]
    moved = shuffled(images.shape[:3], generators("glass_blur", seeds), int(distance), int(sweeps))
    sigmas = (0, sigma, sigma, 0)
    first = scipy.ndimage.gaussian_filter(images.astype(float), sigmas, mode="nearest", truncate=4)
    swapped = first.reshape(-1, 3)[moved].reshape(images.shape)
    expected = scipy.ndimage.gaussian_filter(swapped, sigmas, mode="nearest", truncate=4)
    assert_rounded(corrupt(images, "glass_blur", tier, seeds), expected)
