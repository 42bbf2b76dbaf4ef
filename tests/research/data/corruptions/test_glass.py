"""glass_blur: swaps in the order of the paper, between two Gaussian filters of scipy's."""

import numpy as np
import pytest
import scipy.ndimage

from equipoise.research.data.corruptions import TIERS, corrupt
from equipoise.research.data.corruptions.arrays import generators
from equipoise.research.data.corruptions.blur import fronts, glass_blur, shuffled, smoothed_images
from tests.research.data.corruptions.pictures import assert_rounded, pictures

GLASS = {
    64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
}


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


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("tier", TIERS)
def test_glass_is_smoothing_swapping_smoothing(tier: int, size: int) -> None:
    sigma, distance, sweeps = GLASS[size][tier - 1]
    images, seeds = pictures(2, size), [8, 9]
    moved = shuffled(images.shape[:3], generators("glass_blur", seeds), int(distance), int(sweeps))
    sigmas = (0, sigma, sigma, 0)
    first = scipy.ndimage.gaussian_filter(images.astype(float), sigmas, mode="nearest", truncate=4)
    swapped = first.reshape(-1, 3)[moved].reshape(images.shape)
    expected = scipy.ndimage.gaussian_filter(swapped, sigmas, mode="nearest", truncate=4)
    assert_rounded(corrupt(images, "glass_blur", tier, seeds), expected)
