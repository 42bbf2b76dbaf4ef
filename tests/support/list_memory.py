"""SoTTA's memory as a list that takes samples one by one."""

from collections import Counter

import torch
from torch import Tensor


class ListMemory:
    """High-confidence uniform sampling as a list: a slot is the class and the sample in it."""

    def __init__(self, capacity: int, classes: int, seed: int = 0) -> None:
        self.capacity, self.classes = capacity, classes
        self.slots: list[tuple[int, Tensor]] = []
        self.generator = torch.Generator().manual_seed(seed)

    def offer(self, label: int, sample: Tensor, *, sure: bool = True) -> None:
        """Draw the numbers of a sample, also if it is not sure enough or finds a free slot."""
        draws = torch.rand(self.classes + self.capacity, generator=self.generator).tolist()
        if sure:
            self.take(label, sample, draws)

    def take(self, label: int, sample: Tensor, draws: list[float]) -> int:
        """Put a sample into a slot; returns the slot."""
        slot = len(self.slots)
        if slot < self.capacity:
            self.slots.append((label, sample))
        else:
            slot = self.slot_for(label, draws)
            self.slots[slot] = (label, sample)
        return slot

    def slot_for(self, label: int, draws: list[float]) -> int:
        """The slot a sample takes; a random one of several is the one with the smallest draw."""
        occupancy = Counter(held for held, _ in self.slots)
        most = max(occupancy.values())
        largest = sorted(held for held, count in occupancy.items() if count == most)
        victim = label if label in largest else min(largest, key=lambda held: draws[held])
        own = [slot for slot, (held, _) in enumerate(self.slots) if held == victim]
        return min(own, key=lambda slot: draws[self.classes + slot])
