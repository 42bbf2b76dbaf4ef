from pathlib import Path

import torch

from equipoise.research.data import Reader, open_data_set
from equipoise.research.data.demo import DARKEST, NOISE, SEGMENTS, SMEAR, fading, shaken


def normal(images: torch.Tensor) -> torch.Tensor:
    return torch.randn(images.shape, generator=torch.Generator().manual_seed(len(images)))


def test_dusk_gets_darker_and_noisier_by_the_formula() -> None:
    images = torch.full((5, 1, 8, 8), 200.0)
    at_dusk, noise = fading(images), normal(images)
    assert torch.equal(at_dusk[0], images[0])
    for place in range(5):
        progress = place / 4
        light = 1 + (DARKEST - 1) * progress
        expected = images[place] * light + NOISE * progress * noise[place]
        torch.testing.assert_close(at_dusk[place], expected)


def test_a_shaking_camera_averages_neighbours_in_a_row() -> None:
    images = torch.rand(2, 1, 6, 12) * 255
    found, noise = shaken(images), normal(images)
    for column in range(12):
        near = [min(max(at, 0), 11) for at in range(column - SMEAR // 2, column + SMEAR // 2 + 1)]
        expected = images[..., near].mean(-1) + NOISE * noise[..., column]
        torch.testing.assert_close(found[..., column], expected)


def test_the_stream_is_a_story_in_order_and_never_of_training_images(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    assert [segment.name for segment in SEGMENTS] == ["day", "dusk", "shaking", "day again"]
    stream = data.read("stream", None, Reader())
    assert len(stream) == sum(segment.images for segment in SEGMENTS) == 2500
    day, dusk, shaking, again = (part.float() for part in stream.pixels.split([s.images for s in SEGMENTS]))
    assert dusk[-100:].mean() < 0.5 * dusk[:100].mean()
    steps = [(part[..., 8:] - part[..., :-8]).abs().mean() for part in (day, shaking, again)]
    assert steps[1] < 0.8 * min(steps[0], steps[2])
    assert abs(float(day.mean() - again.mean())) < 15
    assert set(stream.labels[:500].tolist()) == set(range(10))
    trained = data.read("house numbers", 300, Reader())
    seen = {image.numpy().tobytes() for image in trained.pixels}
    assert not any(image.numpy().tobytes() in seen for image in stream.pixels[:200])


def test_a_limit_shortens_every_segment(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    segments = data.segments("stream", 250)
    assert [segment.images for segment in segments] == [50, 100, 50, 50]
    assert len(data.read("stream", 250, Reader())) == 250
    assert len(data.read("house numbers", 40, Reader())) == 40
