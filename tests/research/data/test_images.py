import pytest
import torch

from equipoise.errors import DataError, OptionError
from equipoise.research.data import Images, chosen


def some(count: int, seed: int = 0) -> Images:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 4, 5), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count))


def test_wrong_pixels_and_labels_are_refused() -> None:
    pixels = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"expected uint8 pixels .* got torch.float32 \(2, 3, 4, 5\)"):
        Images(pixels.float(), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DataError, match=r"got torch.uint8 \(3, 4, 5\)"):
        Images(pixels[0], torch.zeros(2, dtype=torch.int64))
    for labels in (torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64)):
        with pytest.raises(DataError, match="expected 2 int64 labels"):
            Images(pixels, labels)


def test_select_and_join_keep_the_order() -> None:
    images = some(5)
    picked = images.select(torch.tensor([3, 1]))
    assert picked.labels.tolist() == [3, 1]
    assert torch.equal(picked.pixels[0], images.pixels[3])
    joined = Images.join([picked, images])
    assert joined.labels.tolist() == [3, 1, 0, 1, 2, 3, 4]
    assert torch.equal(joined.pixels[2:], images.pixels)
    assert Images.join([images]) is images


def test_the_digest_is_of_pixels_labels_and_shape() -> None:
    images = some(5)
    assert images.digest() == some(5).digest()
    others = [
        some(5, seed=1),
        some(4),
        Images(images.pixels, images.labels + 1),
        Images(images.pixels.reshape(5, 3, 5, 4), images.labels),
    ]
    assert len({images.digest(), *(other.digest() for other in others)}) == 5
    # Views in another memory layout have the same pixels and labels.
    there_and_back = images.pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    apart = torch.stack([images.labels, images.labels], dim=1)[:, 0]
    assert not apart.is_contiguous()
    assert Images(there_and_back, images.labels).digest() == images.digest()
    assert Images(images.pixels, apart).digest() == images.digest()


def test_a_limit_is_a_random_choice_that_is_always_the_same() -> None:
    rows = chosen(1000, 100)
    assert torch.equal(rows, chosen(1000, 100))
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(rows) == 100
    assert 350 < rows.float().mean() < 650
    assert set(chosen(1000, 50).tolist()) < set(rows.tolist())
    assert chosen(5, 5).tolist() == chosen(5, 9).tolist() == chosen(5, None).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(OptionError, match="expected limit >= 1, got 0"):
        chosen(5, 0)
