"""gaussian_noise, shot_noise and impulse_noise on flat images: their distributions, from formulas."""

import numpy as np
import pytest
import scipy.stats

from equipoise.research.data.corruptions import corrupt
from tests.research.data.corruptions.pictures import PUBLISHED, Images, Reals, each_size, each_tier, flat


def corrupted(name: str, tier: int, size: int, level: int, count: int = 0) -> Images:
    count = count or 8 * (64 // size) ** 2
    return corrupt(flat(count, size, level), name, tier, range(count))


def assert_uncorrelated(values: Reals) -> None:
    """Neither channels nor neighbours nor images have to do with each other; (N, H, W, 3)."""
    centred = values - values.mean()
    power = np.square(centred).mean()
    for axis in range(4):
        ahead = np.take(centred, range(1, values.shape[axis]), axis)
        behind = np.take(centred, range(values.shape[axis] - 1), axis)
        assert abs((ahead * behind).mean()) < 0.03 * power


@each_size
@each_tier
def test_gaussian_noise_is_normal_with_the_tiers_scale(tier: int, size: int) -> None:
    scale = 255 * PUBLISHED[size]["gaussian_noise"][tier - 1][0]
    noise = corrupted("gaussian_noise", tier, size, 128).astype(float) - 128
    inside = np.sqrt(scale**2 + 1 / 12)  # rounding adds the variance of a uniform distribution
    quantiles = np.quantile(noise, [0.05, 0.25, 0.5, 0.75, 0.95])
    expected = scipy.stats.norm.ppf([0.05, 0.25, 0.5, 0.75, 0.95]) * inside
    assert quantiles == pytest.approx(expected, abs=1 + 0.02 * scale)
    if scale < 128 / 4:  # else it is clipped
        assert noise.std() == pytest.approx(inside, rel=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.02 * scale)
    assert_uncorrelated(noise)


def test_gaussian_noise_is_clipped() -> None:
    came = corrupted("gaussian_noise", 5, 64, 250)
    assert (came == 255).mean() == pytest.approx(scipy.stats.norm.sf(4.5, scale=0.18 * 255), abs=0.01)


@each_size
@each_tier
@pytest.mark.parametrize("level", [1, 9, 60, 128])
def test_shot_noise_is_poisson_with_the_tiers_photons(tier: int, size: int, level: int) -> None:
    photons = PUBLISHED[size]["shot_noise"][tier - 1][0]
    came = corrupted("shot_noise", tier, size, level)
    mean = level / 255 * photons
    counts = np.arange(scipy.stats.poisson.ppf(1 - 1e-9, mean) + 2)
    levels = np.clip(np.rint(counts / photons * 255), 0, 255).astype(int)
    expected = np.bincount(levels, scipy.stats.poisson.pmf(counts, mean), minlength=256) * came.size
    observed = np.bincount(came.ravel(), minlength=256)
    assert not observed[expected < 1e-3].any()
    often = expected > 20
    squares = (observed[often] - expected[often]) ** 2 / expected[often]
    assert squares.sum() < scipy.stats.chi2.ppf(1 - 1e-5, often.sum())
    assert_uncorrelated(came.astype(float))


def test_shot_noise_has_the_variance_of_the_signal() -> None:
    for level in (40, 80, 120):
        came = corrupted("shot_noise", 3, 64, level).astype(float)
        assert came.mean() == pytest.approx(level, rel=0.01)
        assert came.var() == pytest.approx(level * 255 / 50, rel=0.05)  # Var = x / c in units of 1


def test_shot_noise_takes_each_value_by_itself() -> None:
    levels = np.arange(256.0)
    images = np.broadcast_to(np.tile(levels, 16).reshape(1, 64, 64, 1), (40, 64, 64, 3)).astype(np.uint8)
    came = corrupt(images, "shot_noise", 2, range(40)).astype(float)
    means = came.transpose(0, 3, 1, 2).reshape(-1, 256).mean(axis=0)
    spread = np.sqrt(levels * 255 / 100 / (40 * 3 * 16)) + 0.05
    assert (np.abs(means - levels)[:200] < 5 * spread[:200]).all()  # the brightest are clipped
    assert (came[images == 0] == 0).all()
    assert (came[images == 255] < 255).mean() == pytest.approx(scipy.stats.poisson.cdf(99, 100), abs=0.05)


@each_size
@each_tier
def test_impulse_noise_hits_the_tiers_fraction_half_with_salt_half_with_pepper(tier: int, size: int) -> None:
    fraction = PUBLISHED[size]["impulse_noise"][tier - 1][0]
    came = corrupted("impulse_noise", tier, size, 100)
    tolerance = 5 * np.sqrt(fraction / came.size)
    assert set(np.unique(came)) == {0, 100, 255}
    assert (came == 0).mean() == pytest.approx(fraction / 2, abs=tolerance)
    assert (came == 255).mean() == pytest.approx(fraction / 2, abs=tolerance)
    assert_uncorrelated((came != 100).astype(float))
