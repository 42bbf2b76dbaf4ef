"""Take one of the demo's domains as the unseen one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.data.demo import Domain

ASIDE_PART = 10
"""One image in ten is kept aside for the rehearsal."""
ASIDE_LEAST = 150
"""The fewest images that are kept aside."""


@dataclass(frozen=True)
class Pictures:
    """Images (N, 1, 32, 32) and their labels (N)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LeaveOneOut:
    """The source images a model is trained on, those kept aside, and the domain it has never seen."""

    sources: tuple[str, ...]
    training: Pictures
    aside: Pictures
    held_out: Domain


def hold_out(domains: list[Domain], held_out: str, seed: int) -> LeaveOneOut:
    """Take one domain as the unseen one, join the others, and keep a part of them aside."""
    sources = [domain for domain in domains if domain.name != held_out]
    (unseen,) = [domain for domain in domains if domain.name == held_out]
    images = torch.cat([domain.images for domain in sources])
    labels = torch.cat([domain.labels for domain in sources])
    aside = rows_aside(labels, aside_count(len(labels)), seed)
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[aside] = False
    return LeaveOneOut(
        sources=tuple(domain.name for domain in sources),
        training=Pictures(images[rest], labels[rest]),
        aside=Pictures(images[aside], labels[aside]),
        held_out=unseen,
    )


def aside_count(images: int) -> int:
    """How many of so many source images are kept aside."""
    return max(ASIDE_LEAST, images // ASIDE_PART)


def rows_aside(labels: Tensor, count: int, seed: int) -> Tensor:
    """The rows to keep aside: random ones, each class with the share that it has in the labels."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    return by_class[torch.arange(count) * len(labels) // count]
