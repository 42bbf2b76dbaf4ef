"""snow, frost and fog against slow versions, written out here, with the same random numbers."""

import math

import numpy as np
import pytest
import scipy.ndimage

from equipoise.research.data.corruptions import corrupt
from equipoise.research.data.corruptions.arrays import generators
from equipoise.research.data.corruptions.weather import PANES, panes, plasmas
from tests.research.data.corruptions.pictures import (
    PUBLISHED,
    Reals,
    assert_rounded,
    each_size,
    each_tier,
    flat,
    pictures,
)


def fallen(field: Reals, radius: float, sigma: float, angle: float) -> Reals:
    """A field that is blurred by a motion, pixel for pixel along the line."""
    bell = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * math.ceil(radius) + 1)]
    rows, columns = np.indices(field.shape)
    total = np.zeros_like(field)
    for i, weight in enumerate(bell):
        y = rows + math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        x = columns + math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        total += weight * field[np.clip(y, 0, len(field) - 1), np.clip(x, 0, field.shape[1] - 1)]
    return total / sum(bell)


@each_size
@each_tier
def test_snow_is_a_white_sky_and_two_layers_of_flakes(tier: int, size: int) -> None:
    mean, scale, flake, threshold, radius, sigma, weight = PUBLISHED[size]["snow"][tier - 1]
    image = pictures(1, size)
    image[0, : size // 2, : size // 4] = (0, 0, 255)  # brighter, in one channel, than the sky makes it
    (generator,) = generators("snow", [11])
    shown = math.ceil(size / flake)
    angle = generator.uniform(-135, -45)  # the same at every tier, since it comes first
    field = mean + scale * generator.standard_normal((shown, shown), dtype=np.float32).astype(float)
    field = scipy.ndimage.zoom(field, flake, order=1)
    top = (len(field) - size) // 2
    field = field[top : top + size, top : top + size]
    flakes = fallen(np.where(field < threshold, 0, np.clip(field, 0, 1)), radius, sigma, angle)
    x = image[0] / 255
    grey = x @ [0.299, 0.587, 0.114]
    sky = weight * x + (1 - weight) * np.maximum(x, 1.5 * grey[..., None] + 0.5)
    expected = 255 * (sky + (flakes + np.rot90(flakes, 2))[..., None])
    assert_rounded(corrupt(image, "snow", tier, [11])[0], expected)


@each_tier
def test_snow_looks_the_same_upside_down_and_falls(tier: int) -> None:
    came = corrupt(flat(20, 64, 0), "snow", tier, range(20)).astype(float)
    assert np.array_equal(came, came[:, ::-1, ::-1])
    down = np.abs(np.diff(came, axis=1)).mean()
    across = np.abs(np.diff(came, axis=2)).mean()
    assert down < 0.9 * across  # flakes are longer than wide: they fall
    sky = 255 * (1 - PUBLISHED[64]["snow"][tier - 1][-1]) * 0.5
    assert came.min() == pytest.approx(sky, abs=10)
    assert came.max() > sky + 20


@each_size
@each_tier
def test_frost_is_a_weighted_sum_of_image_and_pane(tier: int, size: int) -> None:
    image, (generator,) = pictures(1, size), generators("frost", [3])
    pane = panes()[generator.integers(5)]
    rows, columns = (start + np.arange(size) for start in generator.integers(256, size=2))
    window = pane[rows[:, None] % 256, columns % 256].astype(float)
    weight, thickness, _ = PUBLISHED[size]["frost"][tier - 1]
    assert_rounded(corrupt(image, "frost", tier, [3])[0], weight * image[0] + thickness * window)


def test_panes_of_frost_have_the_look_of_frost() -> None:
    assert len(panes()) == 5
    for pane, image in zip(PANES, panes(), strict=True):
        assert image.shape == (256, 256, 3)
        assert image.dtype == np.uint8
        assert image.mean(axis=(0, 1)) / 255 == pytest.approx(pane.colour, abs=0.02)
        light = image.mean(axis=-1) / 255
        assert light.std() == pytest.approx(pane.contrast, rel=0.1)
        assert (np.diff(pane.colour) > 0).all()  # ice is bluish
        # Crystals are sharp, neither clouds nor noise: neighbours differ, but less than any two pixels do.
        step = np.abs(np.diff(light, axis=0)).mean() / pane.contrast
        assert 0.3 < step < 0.9
        # Bright needles on darker glass: the brightest are further from the median than the darkest.
        low, median, high = np.quantile(light, [0.01, 0.5, 0.99])
        assert high - median > 0.9 * (median - low)


def test_every_pane_is_used_and_windows_are_everywhere() -> None:
    came = corrupt(flat(200, 32, 0), "frost", 5, range(200)).astype(float)
    tints = came.mean(axis=(1, 2)) / 0.45 / 255
    nearest = [
        int(np.square(np.array([p.colour for p in PANES]) - tint).sum(axis=1).argmin()) for tint in tints
    ]
    assert set(nearest) == {0, 1, 2, 3, 4}
    assert len({one.tobytes() for one in came}) == 200


def test_frost_of_large_images_has_larger_crystals() -> None:
    small, large = (corrupt(flat(12, size, 0), "frost", 5, range(12)).astype(float) for size in (64, 128))
    steps = [
        np.abs(np.diff(came, axis=1)).mean() / came.std(axis=(1, 2, 3)).mean() for came in (small, large)
    ]
    assert steps[1] == pytest.approx(steps[0] / 2, rel=0.3)


def diamonds_and_squares(draws: Reals, decay: float) -> Reals:
    """The diamond-square algorithm on a torus, place for place."""
    size = len(draws)
    field = np.zeros((size, size))
    step, wibble = size, 1.0
    while step > 1:
        half = step // 2
        for y in range(0, size, step):
            for x in range(0, size, step):
                corners = [field[(y + i) % size, (x + j) % size] for i in (0, step) for j in (0, step)]
                field[y + half, x + half] = np.mean(corners) + wibble**2 * draws[y + half, x + half]
        for y in range(0, size, half):
            for x in range((y + half) % step, size, step):
                around = ((-half, 0), (half, 0), (0, -half), (0, half))
                ends = [field[(y + i) % size, (x + j) % size] for i, j in around]
                field[y, x] = np.mean(ends) + wibble**2 * draws[y, x]
        step, wibble = half, wibble / decay
    field -= field.min()
    field /= field.max()
    return field


@pytest.mark.parametrize(("size", "decay"), [(8, 3.0), (16, 1.75), (32, 2.0)])
def test_plasma_is_made_of_diamonds_and_squares(size: int, decay: float) -> None:
    came = plasmas(size, generators("fog", [0, 1]), decay)
    for field, generator in zip(came, generators("fog", [0, 1]), strict=True):
        draws = 2 * generator.random((size, size), dtype=np.float32).astype(float) - 1
        assert field == pytest.approx(diamonds_and_squares(draws, decay), abs=1e-5)
        assert (field.min(), field.max()) == (0, 1)


@each_size
@each_tier
def test_fog_adds_plasma_and_darkens(tier: int, size: int) -> None:
    density, decay = PUBLISHED[size]["fog"][tier - 1]
    images = pictures(3, size) // np.array([1, 2, 3], dtype=np.uint8)[:, None, None, None]
    plasma = plasmas(size, generators("fog", [4, 5, 6]), decay).astype(float)
    x = images / 255
    most = x.max(axis=(1, 2, 3), keepdims=True)
    expected = 255 * (x + density * plasma[..., None]) * most / (most + density)
    assert_rounded(corrupt(images, "fog", tier, [4, 5, 6]), expected)


def test_fog_of_other_sizes_is_a_part_of_a_larger_field() -> None:
    came = corrupt(flat(1, 40, 200), "fog", 1, [2])[0, ..., 0] / 255
    plasma = plasmas(64, generators("fog", [2]), 3)[0, :40, :40]  # 40 is nearer to 32: density .2
    most = 200 / 255
    assert came == pytest.approx((most + 0.2 * plasma) * most / (most + 0.2), abs=1 / 255)
