"""What holds for every corruption: shapes, seeds, batches, tiers, sizes, refusals, and constants."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.errors import OptionError
from equipoise.research.data.corruptions import CORRUPTIONS, TIERS, corrupt, jpeg
from equipoise.research.data.corruptions.arrays import generators
from equipoise.research.data.corruptions.severities import constants
from tests.research.data.corruptions.pictures import (
    FIXED,
    PUBLISHED,
    RANDOM,
    Images,
    each_size,
    each_tier,
    pictures,
)

each_name = pytest.mark.parametrize("name", CORRUPTIONS)


def distance(came: Images, clean: Images) -> float:
    """The root of the mean squared difference, in levels."""
    return float(np.sqrt(np.square(came.astype(float) - clean).mean()))


def test_tiers_are_five() -> None:
    assert TIERS == (1, 2, 3, 4, 5)


@each_name
@each_tier
@each_size
def test_an_image_is_corrupted_alike_in_every_batch(name: str, tier: int, size: int) -> None:
    images, seeds = pictures(5, size), [3, 1, 4, 1, 5]
    before = images.copy()
    came = corrupt(images, name, tier, seeds)
    assert came.shape == images.shape
    assert came.dtype == np.uint8
    assert np.array_equal(images, before)
    assert all((one != clean).any() for one, clean in zip(came, images, strict=True))
    assert np.array_equal(corrupt(images, name, tier, seeds), came)
    assert np.array_equal(corrupt(images[::-1], name, tier, seeds[::-1]), came[::-1])
    for place in (0, 4):
        alone = corrupt(images[place : place + 1], name, tier, seeds[place : place + 1])
        assert np.array_equal(alone[0], came[place])


@each_name
@each_size
def test_large_batches_are_corrupted_like_single_images(name: str, size: int) -> None:
    count = 2 * 16 * 64 * 64 // size**2 + 3  # more than are worked on at once
    images = np.tile(pictures(7, size), (count // 7 + 1, 1, 1, 1))[:count]
    seeds = list(range(100, 100 + count))
    came = corrupt(images, name, 3, seeds)
    for place in (0, 1, 15, 16, 17, 63, 64, count - 1):
        if place < count:
            alone = corrupt(images[place : place + 1], name, 3, [seeds[place]])
            assert np.array_equal(alone[0], came[place])
    some = np.random.default_rng(0).permutation(count)[: count // 2]
    assert np.array_equal(corrupt(images[some], name, 3, [seeds[place] for place in some]), came[some])


@pytest.mark.parametrize("name", RANDOM)
@each_tier
def test_seeds_make_a_difference(name: str, tier: int) -> None:
    image = pictures(1, 64)
    seeds = [0, 1, 2, 2**40, 2**40 + 1, 2**64 + 1]
    came = corrupt(np.repeat(image, len(seeds), axis=0), name, tier, seeds)
    different = len({one.tobytes() for one in came})
    # Places are rounded to pixels: angles that are nearly the same are the same over a short way.
    assert different == len(seeds) if name != "motion_blur" else different >= 3


@pytest.mark.parametrize("name", FIXED)
@each_tier
def test_seeds_make_no_difference_where_nothing_is_random(name: str, tier: int) -> None:
    images = pictures(2, 32)
    assert np.array_equal(corrupt(images, name, tier, [0, 1]), corrupt(images, name, tier, [2, 3]))


def test_corruptions_have_random_numbers_of_their_own_and_tiers_share_them() -> None:
    clean = np.full((1, 64, 64, 3), 128, dtype=np.uint8)
    noises = [corrupt(clean, "gaussian_noise", tier, [7]).astype(float).ravel() - 128 for tier in TIERS]
    assert np.corrcoef(noises).min() > 0.95  # the same grain, only stronger
    other = corrupt(clean, "shot_noise", 1, [7]).astype(float).ravel() - 128
    assert abs(np.corrcoef(noises[0], other)[0, 1]) < 0.05
    keys = [(name, seed) for name in CORRUPTIONS for seed in (0, 1)]
    assert len({generators(name, [seed])[0].random() for name, seed in keys}) == len(keys)


def lost(came: Images, clean: Images) -> float:
    """How much of the pictures is lost: 1 − their correlation, on average."""
    pairs = zip(came.reshape(len(came), -1), clean.reshape(len(clean), -1), strict=True)
    return 1 - float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in pairs]))


# Where the constants say so. Those of glass_blur and elastic_transform do not grow in all respects.
@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"glass_blur", "elastic_transform"}))
@each_size
def test_tiers_get_worse(name: str, size: int) -> None:
    images = pictures(60 if name == "frost" else 24, size)  # the panes of frost are not alike
    measure = lost if name == "frost" else distance  # with thicker frost the image gets darker, and nearer
    severities = [measure(corrupt(images, name, tier, range(len(images))), images) for tier in TIERS]
    steps = np.diff(severities)
    if size == 32 and name in ("motion_blur", "frost"):
        steps = np.delete(steps, 2)  # tiers 3 and 4 have the same sigma, and frost that is as thick
    assert (steps > 0).all(), severities
    assert severities[-1] > 1.2 * severities[0], severities


def test_glass_gets_worse_where_its_constants_do() -> None:
    images = pictures(24, 64)
    distances = [distance(corrupt(images, "glass_blur", tier, range(24)), images) for tier in TIERS]
    assert distances[1] < distances[2] < distances[3] < distances[4]  # tier 1 does not smooth
    small = pictures(24, 32)
    distances = [distance(corrupt(small, "glass_blur", tier, range(24)), small) for tier in TIERS]
    assert distances[3] > distances[1]  # the same but for a second sweep
    assert distances[4] > distances[2]


@each_name
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (48, 48), (96, 96), (40, 64), (64, 40), (33, 100)])
def test_other_sizes(name: str, size: tuple[int, int]) -> None:
    images = pictures(2, *size)
    for tier in (1, 5):
        came = corrupt(images, name, tier, [0, 1])
        assert came.shape == images.shape
        if min(size) > 8 and (tier == 5 or min(size) > 16):  # some blurs are over less than half a pixel
            assert distance(came, images) > 0.5
        assert np.array_equal(corrupt(images[1:], name, tier, [1]), came[1:])


@each_name
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (28, 40)])
def test_grey_images_are_corrupted_as_a_channel_of_three_equal_ones(name: str, size: tuple[int, int]) -> None:
    grey = pictures(3, *size)[..., :1]
    colour = np.concatenate([grey, grey, grey], axis=3)
    for tier in (1, 5):
        came = corrupt(grey, name, tier, [5, 6, 7])
        assert came.shape == grey.shape
        assert np.array_equal(came[..., 0], corrupt(colour, name, tier, [5, 6, 7])[..., 1])
    assert np.array_equal(jpeg(grey, 85)[..., 0], jpeg(colour, 85)[..., 1])


def test_noise_of_grey_images_is_as_strong_as_of_colour_images() -> None:
    grey, colour = np.full((4, 64, 64, 1), 128, dtype=np.uint8), np.full((4, 64, 64, 3), 128, dtype=np.uint8)
    spreads = [corrupt(images, "gaussian_noise", 5, range(4)).std() for images in (grey, colour)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.03)


@each_name
def test_images_of_224_pixels(name: str) -> None:
    images = pictures(1, 224)
    mild, severe = (distance(corrupt(images, name, tier, [5]), images) for tier in (2, 5))
    assert 0.5 < mild < severe or name in ("elastic_transform", "frost")


@each_name
def test_no_images_are_no_images(name: str) -> None:
    came = corrupt(np.empty((0, 64, 64, 3), dtype=np.uint8), name, 1, [])
    assert came.shape == (0, 64, 64, 3)
    assert came.dtype == np.uint8
    assert jpeg(came, 85).shape == (0, 64, 64, 3)


@each_name
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white_images(name: str, level: int) -> None:
    images = np.full((2, 32, 32, 3), level, dtype=np.uint8)
    came = corrupt(images, name, 5, [0, 1])
    changed = {
        0: {"gaussian_noise", "impulse_noise", "snow", "frost", "brightness"},
        255: {"gaussian_noise", "impulse_noise", "shot_noise", "frost", "fog"},
    }
    off = np.abs(came.astype(int) - images).max()
    assert off > 20 if name in changed[level] else off <= 1  # JPEG may be off by one


@each_name
def test_the_layout_of_the_array_does_not_matter(name: str) -> None:
    images = pictures(3, 32)
    expected = corrupt(images, name, 4, [0, 1, 2])
    frozen = images.copy()
    frozen.setflags(write=False)
    planes = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, -1, 0)), 0, -1)
    for same in (frozen, planes, np.asfortranarray(images)):
        assert np.array_equal(corrupt(same, name, 4, [0, 1, 2]), expected)


def test_global_random_states_are_left_alone() -> None:
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    before = (repr(np.random.get_state()), random.getstate(), torch.get_rng_state().tolist())
    images = pictures(2, 32)
    first = [corrupt(images, name, 2, [0, 1]) for name in CORRUPTIONS]
    assert (repr(np.random.get_state()), random.getstate(), torch.get_rng_state().tolist()) == before
    np.random.seed(2)
    for name, expected in zip(CORRUPTIONS, first, strict=True):
        assert np.array_equal(corrupt(images, name, 2, [0, 1]), expected)


def digest() -> str:
    """All corruptions of some images, as one number."""
    images, found = pictures(3, 64), hashlib.sha256()
    for name in CORRUPTIONS:
        found.update(corrupt(images, name, 5, [0, 1, 2]).tobytes())
    return found.hexdigest()


def test_another_process_with_other_threads_has_the_same_outcome() -> None:
    code = "from tests.research.data.corruptions.test_contract import digest; print(digest())"
    threads = {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
    came = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **threads},
    )
    assert came.stdout.strip() == digest()


GOOD = pictures(2, 32)
untyped: Any = corrupt


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: corrupt(GOOD.astype(np.float32), "fog", 1, [0, 1]),
            r"uint8 array \(N, H, W, 3\) or \(N, H, W, 1\) with.*got float32",
        ),
        (lambda: corrupt(GOOD[0], "fog", 1, [0]), r"got uint8 of shape \(32, 32, 3\)"),
        (lambda: corrupt(np.moveaxis(GOOD, 3, 1), "fog", 1, [0, 1]), r"got uint8 of shape \(2, 3, 32, 32\)"),
        (
            lambda: corrupt(GOOD[:, :7], "fog", 1, [0, 1]),
            r"sides of 8 pixels or more, got uint8 of shape \(2, 7,",
        ),
        (lambda: corrupt(GOOD.tolist(), "fog", 1, [0, 1]), "got list"),
        (lambda: corrupt(GOOD, "mist", 1, [0, 1]), "expected name as one of gaussian_noise, .*got 'mist'"),
        (lambda: corrupt(GOOD, "fog", 0, [0, 1]), "expected tier >= 1 and <= 5, got 0"),
        (lambda: corrupt(GOOD, "fog", 6, [0, 1]), "expected tier >= 1 and <= 5, got 6"),
        (lambda: untyped(GOOD, "fog", 1.5, [0, 1]), "expected tier as a whole number, got 1.5"),
        (lambda: corrupt(GOOD, "fog", 1, [0]), "expected seeds as 2 whole numbers.*got 1"),
        (lambda: corrupt(GOOD, "contrast", 1, [0, 1, 2]), "expected seeds as 2 whole numbers.*got 3"),
        (lambda: corrupt(GOOD, "fog", 1, [0, -1]), "expected seeds as 2 whole numbers >= 0.*got -1"),
        (lambda: untyped(GOOD, "fog", 1, [0, 0.5]), r"expected seeds as 2 whole numbers.*got \[0, 0.5\]"),
        (lambda: untyped(GOOD, "fog", 1, 7), "expected seeds as 2 whole numbers.*got 7"),
        (lambda: jpeg(GOOD, 0), "expected quality >= 1 and <= 100, got 0"),
        (lambda: jpeg(GOOD.astype(int), 85), "expected images as a uint8 array"),
    ],
)
def test_wrong_input_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()


@each_size
def test_constants_are_those_of_the_published_scripts(size: int) -> None:
    assert tuple(PUBLISHED[size]) == CORRUPTIONS
    for name, expected in PUBLISHED[size].items():
        assert [constants(name, tier, size) for tier in TIERS] == expected


# Where lengths are, written out again: of a kernel, a sigma and a distance, a radius and a sigma, …
LENGTHS = {"defocus_blur": "--k", "glass_blur": "sd-", "motion_blur": "rs", "snow": "--f-rs-", "frost": "--c"}


@pytest.mark.parametrize(
    ("side", "size"), [(8, 32), (16, 32), (40, 32), (45, 32), (46, 64), (48, 64), (96, 64), (224, 64)]
)
def test_other_sizes_have_the_nearer_table_with_lengths_in_proportion(side: int, size: int) -> None:
    for name, rows in PUBLISHED[size].items():
        for tier, row in zip(TIERS, rows, strict=True):
            kinds = LENGTHS.get(name, "-" * len(row))
            expected = [
                value if kind == "-" else value * side / size for value, kind in zip(row, kinds, strict=True)
            ]
            assert constants(name, tier, side) == pytest.approx(expected)
