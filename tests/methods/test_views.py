"""Views of images: what they keep, what they change, and that they repeat with their random numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.errors import BatchError
from equipoise.methods.parts.views import (
    AUGMIX_DRAWS,
    TILE,
    WEAK_DRAWS,
    _blurred,
    _noise,
    _turned,
    augmix_views,
    flipped,
    leaned,
    moved,
    patch_shuffle,
    repeated,
    rotated,
    scaled,
    shifted,
    weak_views,
)
from equipoise.network.batch import Batch


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def number(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value)


def noisy(images: Tensor, draws: Tensor) -> Tensor:
    return weak_views(images, draws, tile=random(*TILE, seed=9))


MAKERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "weak": (weak_views, WEAK_DRAWS),
    "noisy": (noisy, WEAK_DRAWS),
    "augmix": (augmix_views, AUGMIX_DRAWS),
    "shuffled": (patch_shuffle, 16),
}


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("maker", MAKERS)
def test_views_have_the_shape_and_type_of_the_images_and_repeat(maker: str, channels: int) -> None:
    make, count = MAKERS[maker]
    images, draws = random(5, channels, 12, 8), random(5, count, seed=1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.uint8):
        typed = (images * 255).to(dtype) if dtype == torch.uint8 else images.to(dtype)
        views = make(typed, draws)
        assert views.shape == typed.shape
        assert views.dtype == dtype
        assert views.equal(make(typed, draws))
        assert not views.equal(typed)
        assert not views.equal(make(typed, random(5, count, seed=2)))


@pytest.mark.parametrize("maker", MAKERS)
def test_a_view_depends_on_no_other_image(maker: str) -> None:
    make, count = MAKERS[maker]
    images, draws = random(4, 3, 8, 8), random(4, count, seed=1)
    alone = torch.cat([make(images[i : i + 1], draws[i : i + 1]) for i in range(4)])
    assert torch.allclose(alone, make(images, draws), atol=1e-6)
    images[0] *= 1e6
    assert torch.allclose(alone[1:], make(images, draws)[1:], atol=1e-6)


@pytest.mark.parametrize("maker", MAKERS)
def test_the_range_of_values_does_not_matter_and_is_kept(maker: str) -> None:
    make, count = MAKERS[maker]
    images, draws = random(4, 3, 8, 8), random(4, count, seed=1)
    views, bytes_ = make(images, draws), make(255 * images, draws)
    normalised = make((images - 0.45) / 0.225, draws)
    assert torch.allclose(bytes_, 255 * views, atol=1e-2)
    assert torch.allclose(normalised, (views - 0.45) / 0.225, atol=1e-4)
    assert bool((views.amax((1, 2, 3)) <= images.amax((1, 2, 3)) + 1e-6).all())
    assert bool((views.amin((1, 2, 3)) >= images.amin((1, 2, 3)) - 1e-6).all())


@pytest.mark.parametrize("maker", MAKERS)
def test_an_image_of_one_value_stays_as_it_is(maker: str) -> None:
    make, count = MAKERS[maker]
    images = torch.full((2, 3, 8, 8), 7.0)
    assert torch.allclose(make(images, random(2, count)), images)


@pytest.mark.parametrize("maker", MAKERS)
def test_inputs_that_are_no_images_are_refused(maker: str) -> None:
    make, count = MAKERS[maker]
    with pytest.raises(BatchError, match=r"expected images \(N, C, H, W\)"):
        make(random(2, 6), random(2, count))


def test_draws_in_the_middle_leave_the_image() -> None:
    images, middle = random(2, 3, 8, 8), torch.full((2, WEAK_DRAWS), 0.5)
    assert torch.allclose(weak_views(images, middle), images, atol=1e-5)


def test_brightness_contrast_and_gamma_by_hand() -> None:
    images = random(1, 1, 4, 4)
    images = (images - images.min()) / (images.max() - images.min())
    draws = torch.full((1, WEAK_DRAWS), 0.5)
    draws[0, 0], draws[0, 1], draws[0, 4] = 0.25, 0.0, 1.0
    dark = images * 0.8
    flat = (dark.mean() + 0.7 * (dark - dark.mean())).clamp(0, 1)
    assert torch.allclose(weak_views(images, draws), flat**1.3, atol=1e-5)


def test_saturation_and_hue_keep_grey() -> None:
    grey = random(1, 1, 6, 6).expand(1, 3, 6, 6)
    draws = torch.full((1, WEAK_DRAWS), 0.5)
    draws[0, 2], draws[0, 3] = 0.9, 0.1
    assert torch.allclose(weak_views(grey, draws), grey, atol=1e-5)


def test_a_third_of_the_circle_exchanges_the_colours() -> None:
    pixels = random(2, 3, 4, 4)
    turned = _turned(pixels, number(2 * math.pi / 3))
    assert torch.allclose(turned, pixels.roll(1, 1), atol=1e-5)


def test_rotation_by_a_right_angle_is_exact_on_a_square() -> None:
    image = random(1, 2, 5, 5)
    assert torch.allclose(moved(image, rotated(number(90.0), 1.0)), image.rot90(1, (2, 3)), atol=1e-5)


def test_rotation_of_a_wide_image_keeps_angles() -> None:
    """A line down the middle of a wide image becomes one across, as many pixels long as the image is high."""
    image = torch.zeros(1, 1, 5, 11)
    image[..., 5] = 1.0
    turned = moved(image, rotated(number(90.0), 11 / 5))
    expected = torch.zeros(1, 1, 5, 11)
    expected[..., 2, :] = 1.0  # edges are repeated
    assert torch.allclose(turned, expected, atol=1e-5)


def test_a_shift_a_shear_a_scale_and_a_mirror_image_by_hand() -> None:
    image = random(1, 1, 4, 4)
    there = moved(image, shifted(number(0.25), number(0.0)))
    assert torch.allclose(there[..., :3], image[..., 1:], atol=1e-5)
    mirrored = moved(torch.cat([image, image]), flipped(torch.tensor([0.2, 0.7]).reshape(2, 1, 1, 1)))
    assert torch.allclose(mirrored, torch.cat([image, image.flip(3)]), atol=1e-5)
    large = moved(image, scaled(number(2.0)))  # pixels 0 and 1 lie at 0.75 and 1.25 of the image
    assert torch.allclose(
        large[0, 0, 0, 0],
        image[0, 0, 0:2, 0:2]
        .mul(torch.tensor([[0.25 * 0.25, 0.25 * 0.75], [0.75 * 0.25, 0.75 * 0.75]]))
        .sum(),
        atol=1e-5,
    )
    zero = number(0.0)
    leaning = moved(
        image, leaned(zero, number(1.0), zero, zero, zero, 1.0)
    )  # row 0 is 1.5 pixels above the middle
    assert torch.allclose(leaning[0, 0, 0, 2:], (image[0, 0, 0, :2] + image[0, 0, 0, 1:3]) / 2, atol=1e-5)


def test_composed_maps_are_one_map_after_the_other() -> None:
    image = random(1, 1, 9, 9)
    both = moved(image, shifted(number(1 / 9), number(0.0)).then(rotated(number(90.0), 1.0)))
    turned = image.rot90(1, (2, 3))
    assert torch.allclose(both[..., :8], turned[..., 1:], atol=1e-5)


def test_the_noise_is_normal_and_differs_between_images_and_channels() -> None:
    pixels = torch.zeros(2, 3, 50, 50)
    places = random(2, 2, seed=4)
    noise = _noise(pixels, random(*TILE), *places.unbind(1))
    assert abs(float(noise.std()) - 1) < 0.05
    assert abs(float(noise.mean())) < 0.05
    flat = noise.flatten(2).flatten(0, 1)
    between = torch.corrcoef(flat) - torch.eye(6)
    assert float(between.abs().max()) < 0.15


def test_blur_by_hand() -> None:
    image = random(1, 1, 6, 7).double()
    weights = torch.tensor([math.exp(-0.5 * (d / 0.5) ** 2) for d in range(-2, 3)]).double()
    weights /= weights.sum()
    edged = torch.nn.functional.pad(image, (2, 2, 2, 2), mode="replicate")
    expected = torch.nn.functional.conv2d(edged, torch.outer(weights, weights)[None, None])
    assert torch.allclose(_blurred(image, number(0.5).double()), expected)


def test_shuffled_patches_by_hand() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    draws = torch.tensor([[0.3, 0.1, 0.9, 0.2]])  # in order: patches 1, 3, 0, 2
    came = patch_shuffle(image, draws, grid=2)
    expected = [[2.0, 3, 10, 11], [6, 7, 14, 15], [0, 1, 8, 9], [4, 5, 12, 13]]
    assert came[0, 0].tolist() == expected


def test_images_of_any_size_are_shuffled_but_not_smaller_than_the_grid() -> None:
    images = random(2, 3, 7, 10)
    assert patch_shuffle(images, random(2, 16)).shape == images.shape
    with pytest.raises(BatchError, match="at least 4 x 4 pixels"):
        patch_shuffle(random(1, 1, 3, 8), random(1, 16))


def test_augmix_mixes_the_image_with_its_chains() -> None:
    """With a share near one the image itself is left."""
    images, draws = random(2, 3, 8, 8), random(2, AUGMIX_DRAWS)
    draws[:, :2], draws[:, 3] = 0.5, 1.0
    assert torch.allclose(augmix_views(images, draws), images, atol=1e-5)
    draws[:, 3] = 0.0
    assert not torch.allclose(augmix_views(images, draws), images, atol=1e-2)


def augmix_of_one(image: Tensor, kind: int, strength: float) -> Tensor:
    """The view that is one chain of one operation alone."""
    draws = torch.zeros(1, AUGMIX_DRAWS)
    draws[0, :3], draws[0, 4] = 0.5, 0.9
    draws[0, 8], draws[0, 11] = (kind + 0.5) / 8, strength
    return augmix_views(image, draws)


def test_the_operations_of_augmix_by_hand() -> None:
    image = random(1, 1, 10, 10)
    image = (image - image.min()) / (image.max() - image.min())
    turned = moved(image, rotated(number(9.0), 1.0))
    assert torch.allclose(augmix_of_one(image, 0, 1.0), turned, atol=1e-5)
    right = augmix_of_one(image, 3, 1.0)
    assert torch.allclose(right[..., :9], image[..., 1:], atol=1e-5)
    assert torch.allclose(right[..., 9], image[..., 9], atol=1e-5)
    assert torch.allclose(augmix_of_one(image, 4, 0.0)[..., 1:, :], image[..., :9, :], atol=1e-5)
    narrow = torch.cat([image, 0.25 + 0.5 * image], 1)
    assert torch.allclose(augmix_of_one(narrow, 5, 0.3), torch.cat([image, image], 1), atol=1e-5)
    few = augmix_of_one(image, 6, 0.1)
    assert torch.allclose(few, ((image * 8).floor() / 8).clamp(max=7 / 8), atol=1e-5)
    bright = augmix_of_one(image, 7, 1.0)
    assert torch.allclose(bright, torch.where(image >= 0.7, 1 - image, image), atol=1e-5)


def test_a_chain_has_one_to_three_operations() -> None:
    image = random(1, 1, 10, 10)
    image = (image - image.min()) / (image.max() - image.min())
    draws = torch.zeros(1, AUGMIX_DRAWS)
    draws[0, :3], draws[0, 4] = 0.5, 0.9
    draws[0, 8:11], draws[0, 11:14] = 3.5 / 8, 1.0  # three shifts by a tenth
    for length in range(1, 4):
        draws[0, 7] = (length - 0.5) / 3
        view = augmix_views(image, draws)
        assert torch.allclose(view[..., : 10 - length], image[..., length:], atol=1e-5)


def test_a_batch_is_repeated_sample_by_sample() -> None:
    batch = Batch.of((torch.tensor([[1.0], [2.0]]),), {"ids": torch.tensor([[7]]), "scale": 2.0})
    twice = repeated(batch, 2)
    assert twice.rows == 4
    assert twice.args[0].flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert twice.kwargs["ids"].tolist() == [[7]]
