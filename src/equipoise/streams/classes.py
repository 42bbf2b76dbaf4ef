"""Streams that differ in when which class comes: class after class, correlated in time, or rarely at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from equipoise.options import option
from equipoise.streams.places import Domains, Kind, Places, Visit, as_one, one_after_another, permutation

MOST_SLOTS = 100
USUAL_BATCH = 64
"""Images in a row whose classes a description counts, and the fewest of a slot by default."""


@dataclass(frozen=True, kw_only=True)
class Sorted(Kind):
    """Class after class of all domains, the lowest first, in random order within a class."""

    alone = True
    about = "class after class, in random order within a class"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """One order of all rows."""
        labels = torch.cat(list(domains.labels))
        rows = permutation(len(labels), generator)
        return as_one("all classes", rows[labels[rows].argsort(stable=True)], domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Correlated(Kind):
    """One domain after the other, each with classes that come in bursts.

    The time of a domain is divided into slots. The images of a class are divided among them by shares drawn
    from Dirichlet(concentration, …, concentration): the smaller the concentration, the fewer slots a class is
    in. In a slot the classes come one after the other, in random order. Each image comes once.

    Gong et al., "NOTE", NeurIPS 2022, section 4; Yuan et al., "Robust Test-Time Adaptation in Dynamic
    Scenarios", CVPR 2023, section 3.1.

    Args:
        concentration: of the Dirichlet distribution.
        slots: how many; None: as many as there are classes, at most 100, each of 64 images or more, so that
            bursts outlast a batch.
    """

    concentration: float = option(0.1, low=1e-4)
    slots: int | None = option(None, low=1, whole=True)

    @property
    def about(self) -> str:
        """The order in words, with its concentration."""
        return (
            "one domain after the other, each with classes in bursts by a Dirichlet distribution of "
            f"concentration {self.concentration:g} over slots of time"
        )

    def drawn(self, domains: Domains, places: Places) -> str:
        """With the classes of neighbouring images: a slot shorter than a batch makes no burst in it."""
        labels = torch.cat(list(domains.labels))[places.rows]
        met = fmean(len(batch.unique()) for batch in labels.split(USUAL_BATCH))
        classes = len(labels.unique())
        return f"{self.about}; {USUAL_BATCH} images in a row are of {met:.1f} of {classes} classes on average"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """A visit to each domain, slot after slot."""
        visits = []
        for place, (name, labels) in enumerate(zip(domains.names, domains.labels, strict=True)):
            most = min(len(labels.unique()), MOST_SLOTS, max(1, len(labels) // USUAL_BATCH))
            count = self.slots or most
            slots = dirichlet_slots(labels, count, self.concentration, generator)
            visits.append(Visit(name, place, torch.cat(slots)))
        return one_after_another(visits, domains.sizes)


def dirichlet_slots(
    labels: Tensor, slots: int, concentration: float, generator: torch.Generator
) -> list[Tensor]:
    """The rows of each slot, class after class; a class is divided among the slots by Dirichlet shares."""
    # NumPy draws from a Dirichlet distribution without underflow at small concentrations; its seed is ours.
    draws = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    parts: list[list[Tensor]] = [[] for _ in range(slots)]
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        rows = rows[permutation(len(rows), generator)]
        shares = torch.from_numpy(draws.dirichlet(np.full(slots, concentration)))
        cuts = (shares.cumsum(0)[:-1] * len(rows)).round().long()
        for slot, part in enumerate(rows.tensor_split(cuts)):
            parts[slot].append(part)
    return [
        torch.cat([of_slot[place] for place in permutation(len(of_slot), generator).tolist()])
        for of_slot in parts
    ]


@dataclass(frozen=True, kw_only=True)
class Imbalanced(Kind):
    """One domain after the other, in random order, with long-tailed class frequencies.

    The class of rank k = 0, …, C − 1 has n · ratio^(−k / (C − 1)) images, with the largest n for which there
    are enough, and at least one; the ranks are drawn, the same for all domains. An image comes at most once.

    Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, section 5.1.

    Args:
        ratio: the number of images of the most frequent class to that of the rarest.
    """

    ratio: float = option(100.0, low=1)

    about = "one domain after the other, each in random order, with long-tailed class frequencies"

    def drawn(self, domains: Domains, places: Places) -> str:
        """With the numbers of images: a class with few images may leave no room for the ratio."""
        counts = torch.cat(list(domains.labels))[places.rows].unique(return_counts=True)[1]
        return (
            f"{self.about}: {int(counts.max()):,} images of the most frequent class, "
            f"{int(counts.min()):,} of the rarest"
        )

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """A visit to each domain, with some of its images."""
        classes = torch.cat(list(domains.labels)).unique()
        ranked = classes[permutation(len(classes), generator)].tolist()
        visits = []
        for place, (name, labels) in enumerate(zip(domains.names, domains.labels, strict=True)):
            rows = torch.cat(long_tail(labels, ranked, self.ratio, generator))
            visits.append(Visit(name, place, rows[permutation(len(rows), generator)]))
        return one_after_another(visits, domains.sizes)


def long_tail(
    labels: Tensor, ranked: Sequence[int], ratio: float, generator: torch.Generator
) -> list[Tensor]:
    """Some rows of each class, by rank; the most frequent class is the first."""
    steps = max(len(ranked) - 1, 1)
    shares = {label: ratio ** (-rank / steps) for rank, label in enumerate(ranked)}
    of_class = {label: (labels == label).nonzero().flatten() for label in ranked}
    most = min(len(rows) / shares[label] for label, rows in of_class.items() if len(rows))
    picked = []
    for label, rows in of_class.items():
        count = min(len(rows), max(1, round(most * shares[label])))
        picked.append(rows[permutation(len(rows), generator)[:count]])
    return picked
