from pathlib import Path

import torch

from equipoise.data import Reader, open_data_set
from equipoise.data.drift import DARKEST, NOISIEST, SEGMENTS, fading


def test_dusk_gets_darker_and_noisier_by_the_formula() -> None:
    images = torch.full((5, 1, 8, 8), 200.0)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    at_dusk = fading(images)
    assert torch.equal(at_dusk[0], images[0])
    for place in range(5):
        progress = place / 4
        light = 1 + (DARKEST - 1) * progress
        expected = images[place] * light + NOISIEST * progress * noise[place]
        torch.testing.assert_close(at_dusk[place], expected)


def test_the_stream_is_a_story_in_order_and_never_of_training_images(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    assert [segment.name for segment in SEGMENTS] == ["day", "dusk", "handwriting", "day again"]
    stream = data.read("stream", None, Reader())
    trained = data.read("house numbers", 300, Reader())
    assert len(stream) == sum(segment.images for segment in SEGMENTS) == 2500
    first, dusk, hand, last = (part.float() for part in stream.pixels.split([s.images for s in SEGMENTS]))
    assert dusk[-100:].mean() < 0.5 * dusk[:100].mean()
    assert (hand == 0).float().mean() > 0.5  # MNIST's black ground
    assert abs(float(first.mean() - last.mean())) < 15
    assert set(stream.labels[:500].tolist()) == set(range(10))
    seen = {tuple(image.flatten().tolist()) for image in trained.pixels}
    assert not any(tuple(image.flatten().tolist()) in seen for image in stream.pixels[:200])


def test_a_limit_thins_every_segment_and_keeps_the_order(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    segments = data.segments("stream", 250)
    assert sum(segment.images for segment in segments) == len(data.read("stream", 250, Reader())) == 250
    pairs = zip(segments, SEGMENTS, strict=True)
    assert all(abs(thin.images - whole.images / 10) < 25 for thin, whole in pairs)
