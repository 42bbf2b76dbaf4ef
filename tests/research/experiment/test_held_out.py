"""The split of source images: by class, the same for the same seed, nothing lost and nothing twice."""

import pytest
import torch

from equipoise.research.experiment.trained_model import split

LABELS = torch.tensor([0] * 200 + [1] * 55 + [2] * 20 + [3] * 3 + [4])


@pytest.mark.parametrize("seed", range(12))
def test_every_image_is_on_one_side_and_each_class_gives_its_tenth(seed: int) -> None:
    shuffled = LABELS[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(99))]
    trained, held = split(shuffled, seed)
    assert sorted([*trained.tolist(), *held.tolist()]) == list(range(279))
    assert trained.tolist() == sorted(trained.tolist())
    assert held.tolist() == sorted(held.tolist())
    counts = shuffled[held].bincount(minlength=5).tolist()
    assert counts[0] == 20
    assert counts[1] in (5, 6)
    assert counts[2] == 2
    assert counts[3] in (0, 1)
    assert counts[4] == 0  # its only image is trained on
    assert len(held) in (27, 28)


def test_the_seed_alone_decides() -> None:
    torch.manual_seed(1)
    one = split(LABELS, 5)
    torch.manual_seed(2)
    two, other = split(LABELS, 5), split(LABELS, 6)
    assert torch.equal(one.held_out, two.held_out)
    assert torch.equal(one.trained, two.trained)
    assert not torch.equal(one.held_out, other.held_out)


def test_the_images_of_a_class_are_picked_at_random() -> None:
    picked = torch.cat([split(torch.zeros(100, dtype=torch.int64), seed).held_out for seed in range(60)])
    assert len(picked.unique()) > 95
    gaps = split(torch.zeros(100, dtype=torch.int64), 0).held_out.diff().unique()
    assert len(gaps) > 3  # not every tenth as they lie


@pytest.mark.parametrize("each", [1, 2])
def test_classes_of_one_or_two_images_keep_one(each: int) -> None:
    labels = torch.arange(200) // each
    for seed in range(5):
        trained, held = split(labels, seed)
        assert labels[trained].unique().tolist() == list(range(200 // each))
        assert len(held) == (0 if each == 1 else 20)


def test_no_image_and_one() -> None:
    assert [len(part) for part in split(torch.zeros(0, dtype=torch.int64), 0)] == [0, 0]
    for seed in range(20):
        assert [len(part) for part in split(torch.zeros(1, dtype=torch.int64), seed)] == [1, 0]
