"""SoTTA's memory against one that takes the samples one by one, written out here, with the same draws."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from equipoise.hus import offer, replaced_slots


class Memory:
    """High-confidence uniform sampling as a list: a slot is the class and the sample in it."""

    def __init__(self, capacity: int, classes: int, seed: int = 0) -> None:
        self.capacity, self.classes = capacity, classes
        self.slots: list[tuple[int, Tensor]] = []
        self.generator = torch.Generator().manual_seed(seed)

    def offer(self, label: int, sample: Tensor) -> None:
        if len(self.slots) < self.capacity:
            self.slots.append((label, sample))
            return
        draws = torch.rand(self.classes + self.capacity, generator=self.generator).tolist()
        self.slots[self.slot_for(label, draws)] = (label, sample)

    def slot_for(self, label: int, draws: list[float]) -> int:
        """The slot a sample takes; a random one of several is the one with the smallest draw."""
        occupancy = Counter(held for held, _ in self.slots)
        most = max(occupancy.values())
        largest = [held for held, count in occupancy.items() if count == most]
        victim = label if label in largest else min(largest, key=lambda held: draws[held])
        own = [slot for slot, (held, _) in enumerate(self.slots) if held == victim]
        return min(own, key=lambda slot: draws[self.classes + slot])


def empty(capacity: int, seed: int = 0) -> dict[str, Tensor]:
    return {
        "classes": torch.full((capacity,), -1),
        "random": torch.Generator().manual_seed(seed).get_state(),
    }


def skewed(rows: int, classes: int, generator: torch.Generator) -> Tensor:
    """Classes of a stream in which each comes less often than the one before."""
    shares = (1.0 / torch.arange(1, classes + 1)).cumsum(0)
    return torch.searchsorted(shares, torch.rand(rows, generator=generator) * shares[-1])


@pytest.mark.parametrize("capacity", [1, 3, 64])
@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_long_stream_leaves_the_same_sample_in_every_slot(capacity: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(10 + seed)
    kept, expected = empty(capacity, seed), Memory(capacity, classes, seed)
    longest = 0
    for start in range(0, 4000, 200):
        rows = int(torch.randint(0, 2 * capacity + 5, (), generator=generator))
        longest = max(longest, rows)
        labels = skewed(rows, classes, generator)
        numbers = torch.arange(start, start + rows)
        pictures = torch.rand(rows, 2, 3, generator=generator)
        kept = {**kept, **offer(kept, {"0": pictures, "number": numbers}, labels, classes)}
        for row in range(rows):
            expected.offer(int(labels[row]), torch.cat([numbers[row, None], pictures[row].flatten()]))
        filled = len(expected.slots)
        assert kept["classes"].tolist() == [held for held, _ in expected.slots] + [-1] * (capacity - filled)
        for slot, (_, sample) in enumerate(expected.slots):
            assert kept["samples.number"][slot] == sample[0]
            assert torch.equal(kept["samples.0"][slot].flatten(), sample[1:])
    assert len(expected.slots) == capacity
    assert longest > capacity


@pytest.mark.parametrize("capacity", [1, 3, 64])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_replaced_slots_are_those_of_one_sample_after_another(capacity: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(capacity * classes)
    for rows in (0, 1, 2, capacity, 3 * capacity + 1):
        held, labels = skewed(capacity, classes, generator), skewed(rows, classes, generator)
        draws = torch.rand(rows, classes + capacity, generator=generator)
        memory = Memory(capacity, classes)
        memory.slots = [(int(label), torch.empty(0)) for label in held]
        expected = []
        for label, row in zip(labels.tolist(), draws.tolist(), strict=True):
            expected.append(memory.slot_for(label, row))
            memory.slots[expected[-1]] = (label, torch.empty(0))
        came = replaced_slots(held.numpy(), labels.numpy(), draws.numpy(), classes)
        assert came.tolist() == expected


def test_how_the_stream_is_cut_into_batches_does_not_matter() -> None:
    labels = skewed(300, 5, torch.Generator().manual_seed(4))
    samples = torch.arange(300)
    whole = offer(empty(8), {"0": samples}, labels, 5)
    single = empty(8)
    for row in range(300):
        single = {**single, **offer(single, {"0": samples[row : row + 1]}, labels[row : row + 1], 5)}
    assert whole.keys() == single.keys()
    assert all(torch.equal(whole[name], single[name]) for name in whole)


def test_a_skewed_stream_ends_in_a_balanced_memory() -> None:
    labels, kept = skewed(1200, 4, torch.Generator().manual_seed(5)), empty(64)
    for rows in torch.arange(1200).split(100):
        kept = {**kept, **offer(kept, {"0": rows}, labels[rows], 4)}
    assert Counter(kept["classes"].tolist()) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert torch.equal(labels[kept["samples.0"]], kept["classes"])


@pytest.mark.parametrize(
    ("label", "places", "bound"),
    [
        (0, 10, 30.0),  # in the largest classes: one of its own; chi-square with 9 degrees of freedom
        (2, 20, 50.0),  # not in them: one of both; 19 degrees of freedom
        (3, 20, 50.0),  # not in the memory at all
    ],
)
def test_evictions_are_uniform(label: int, places: int, bound: float) -> None:
    held = torch.tensor([0] * 10 + [1] * 10 + [2] * 4)
    trials = 1200
    kept = {**empty(24), "classes": held}
    taken: Counter[int] = Counter()
    for _ in range(trials):
        news = offer(kept, {"0": torch.ones(1)}, torch.tensor([label]), 4)
        taken[int(news["samples.0"].argmax())] += 1
        kept["random"] = news["random"]
    assert set(taken) == set(range(places))
    mean = trials / places
    assert sum((count - mean) ** 2 / mean for count in taken.values()) < bound


def test_an_offer_changes_nothing_that_it_is_given() -> None:
    kept = offer(empty(3), {"0": torch.arange(5)}, torch.tensor([0, 1, 1, 0, 1]), 2)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    offer(kept, {"0": torch.arange(10, 20)}, torch.ones(10, dtype=torch.long), 2)
    assert all(torch.equal(kept[name], before[name]) for name in before)


def test_an_offer_of_nothing_makes_room() -> None:
    kept = offer(empty(3), {"0": torch.empty(0, 2, dtype=torch.uint8)}, torch.empty(0, dtype=torch.long), 2)
    assert (kept["samples.0"].shape, kept["samples.0"].dtype) == ((3, 2), torch.uint8)
    assert kept["classes"].tolist() == [-1, -1, -1]
    assert torch.equal(kept["random"], empty(3)["random"])
