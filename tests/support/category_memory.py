"""RoTTA's memory as lists of samples by class, which takes samples one by one."""

import math
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Item:
    """A sample in the memory."""

    sample: Tensor
    nats: float
    age: int = 0
    slot: int = -1


@dataclass
class ListedCategories:
    """Lists of samples for each class, at most `capacity` in all."""

    capacity: int
    classes: int
    lists: dict[int, list[Item]] = field(default_factory=dict)

    def score(self, item: Item) -> float:
        return 1 / (1 + math.exp(-item.age / self.capacity)) + item.nats / math.log(self.classes)

    def listed(self) -> list[tuple[int, Item]]:
        return [(label, item) for label, items in self.lists.items() for item in items]

    def offer(self, label: int, nats: float, sample: Tensor) -> None:
        new, own = Item(sample, nats), self.lists.setdefault(label, [])
        quota = max(self.capacity / self.classes, 1)
        if len(own) < quota and len(self.listed()) < self.capacity:
            new.slot = min(set(range(self.capacity)) - {item.slot for _, item in self.listed()})
            own.append(new)
        else:
            longest = max(len(items) for items in self.lists.values())
            losers = [label] if len(own) >= quota else [k for k, v in self.lists.items() if len(v) == longest]
            score, loser, worst = max(
                ((self.score(item), k, item) for k in losers for item in self.lists[k]), key=lambda x: x[0]
            )
            if score > self.score(new):
                self.lists[loser] = [item for item in self.lists[loser] if item is not worst]
                new.slot = worst.slot
                self.lists[label].append(new)
        for _, item in self.listed():
            item.age += 1
