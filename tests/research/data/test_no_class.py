import numpy as np
import pytest
import torch

from equipoise.research.data import Images, make_image_stream
from equipoise.research.data.image_stream import phase_scrambled, texture, uniform_noise, without_class

LABELS = torch.arange(10).repeat(20)


def photos(channels: int = 3, height: int = 16, width: int = 12, count: int = 200) -> torch.Tensor:
    """Smooth pictures: a slope in a direction of its own in each channel."""
    down = torch.linspace(0, 1, height).view(-1, 1)
    across = torch.linspace(0, 1, width)
    slopes = torch.rand(2, count, channels, 1, 1, generator=torch.Generator().manual_seed(0))
    return (127 * (slopes[0] * down + slopes[1] * across)).to(torch.uint8)


def all_batches(size: int, seed: int = 0, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    stream = make_image_stream([LABELS], "noisy", seed, share=0.3)
    batches = list(stream.batches(Images(photos(channels), LABELS), size))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_same_whatever_the_size_of_the_batches(channels: int) -> None:
    x, y = all_batches(50, channels=channels)
    for size in (1, 7, 500):
        again, labels = all_batches(size, channels=channels)
        assert torch.equal(x, again)
        assert torch.equal(y, labels)
    other, others = all_batches(50, seed=1, channels=channels)
    assert not torch.equal(x[y < 0][:20], other[others < 0][:20])


def test_images_of_no_class_are_no_images_of_the_data_set() -> None:
    x, y = all_batches(50)
    known = {tuple(image.flatten().tolist()) for image in photos().float()}
    assert y.min() == -1
    for image, label in zip(x, y, strict=True):
        assert (tuple(image.flatten().tolist()) in known) == (label >= 0)
    assert len({tuple(image.flatten().tolist()) for image in x[y < 0]}) == int((y < 0).sum())


def test_the_three_kinds_are_as_likely() -> None:
    pictures, seeds = photos(count=600), list(range(600))
    made = without_class(pictures, seeds).numpy()
    counts = dict.fromkeys((uniform_noise, texture, phase_scrambled), 0)
    for image, picture, seed in zip(made, pictures.numpy(), seeds, strict=True):
        for make in counts:
            generator = np.random.default_rng(seed)
            generator.integers(3)
            counts[make] += bool((make(picture, generator) == image).all())
    assert sum(counts.values()) == 600
    assert min(counts.values()) > 160


@pytest.mark.parametrize(("height", "width"), [(32, 32), (15, 21)])
def test_scrambled_phases_keep_the_spectrum_and_the_mean(height: int, width: int) -> None:
    # Of little contrast around the middle, so that no value is clipped.
    picture = np.random.default_rng(0).integers(118, 138, (3, height, width), dtype=np.uint8)
    made = phase_scrambled(picture, np.random.default_rng(1))
    before, after = (np.abs(np.fft.fft2(image.astype(np.float64))) for image in (picture, made))
    assert np.abs(after - before).max() < 0.05 * before[:, 1:].max()
    assert made.mean(axis=(1, 2)) == pytest.approx(picture.mean(axis=(1, 2)), abs=0.1)
    alike = np.corrcoef(made.ravel().astype(float), picture.ravel().astype(float))[0, 1]
    assert abs(alike) < 0.2
    # Channels are scrambled alike: their sum is the scrambled sum.
    grey = picture[:1].repeat(3, axis=0)
    scrambled = phase_scrambled(grey, np.random.default_rng(1))
    assert (scrambled == scrambled[:1]).all()


def test_textures_are_smooth_and_noise_is_not() -> None:
    picture = photos(height=32, width=32)[0].numpy()

    def roughness(image: np.ndarray) -> float:
        wide = image.astype(float)
        return float(np.abs(np.diff(wide, axis=2)).mean() / wide.std())

    rough = [roughness(uniform_noise(picture, np.random.default_rng(seed))) for seed in range(20)]
    smooth = [roughness(texture(picture, np.random.default_rng(seed))) for seed in range(20)]
    assert max(smooth) < min(rough)
    assert np.mean(rough) == pytest.approx((256 / 3) / (256 / 12**0.5), rel=0.05)
