"""The kinds of streams: by the order of domains, by the order of classes, and with images of no class."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.options import check_options, option

KindName = Literal[
    "shuffled",
    "sorted",
    "mixed",
    "recorded",
    "continual",
    "gradual",
    "correlated",
    "recurring",
    "abrupt",
    "noisy",
    "imbalanced",
]
"""The name of a kind of stream (`order` in recipes and results); docs/how-to/streams.md shows each kind."""


class Segment(NamedTuple):
    """A named stretch of a stream, and its number of samples."""

    name: str
    images: int


class Places(NamedTuple):
    """Rows and domains of a stream's images, both (T,), and its segments."""

    rows: Tensor
    domains: Tensor
    segments: tuple[Segment, ...]


class Visit(NamedTuple):
    """A stretch of samples of one domain, a segment of the stream: rows within the domain, in order."""

    name: str
    domain: int
    rows: Tensor


class Domains(NamedTuple):
    """The domains that a stream is made of: their names and labels."""

    names: Sequence[str]
    labels: Sequence[Tensor]

    @property
    def sizes(self) -> list[int]:
        """The number of images of each."""
        return [len(labels) for labels in self.labels]


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of stream; the fields of a subclass are its options.

    Attributes:
        fewest, most: the number of domains that it takes.
        alone: whether experiments make one of each domain, and join none.
        joins: whether it is nothing of its own with a single domain, so that experiments must join several.
    """

    fewest: ClassVar[int] = 1
    most: ClassVar[float] = float("inf")
    alone: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_options(self)

    @property
    @abstractmethod
    def about(self) -> str:
        """The order in words: the rest of a sentence that starts with a number of images and a colon."""

    def drawn(self, domains: Domains, places: Places) -> str:
        """The order in words, with numbers of a stream that was drawn."""
        return self.about

    @abstractmethod
    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """The places of a stream of these domains."""


def starts_of(sizes: Sequence[int]) -> list[int]:
    """The first row of each domain, when they are joined one after another."""
    return [0, *accumulate(sizes)][: len(sizes)]


def one_after_another(visits: Sequence[Visit], sizes: Sequence[int]) -> Places:
    """The places of visits to domains of these sizes."""
    starts = starts_of(sizes)
    return Places(
        torch.cat([starts[visit.domain] + visit.rows for visit in visits]),
        torch.cat([torch.full((len(visit.rows),), visit.domain) for visit in visits]),
        tuple(Segment(visit.name, len(visit.rows)) for visit in visits),
    )


def as_one(name: str, rows: Tensor, sizes: Sequence[int]) -> Places:
    """The places of rows of any domains, as one segment."""
    ends = torch.tensor(list(accumulate(sizes)))
    return Places(rows, torch.bucketize(rows, ends, right=True), (Segment(name, len(rows)),))


def permutation(count: int, generator: torch.Generator) -> Tensor:
    """The numbers from 0 to `count` − 1 in random order."""
    return torch.randperm(count, generator=generator)


def in_turn(domains: Domains, generator: torch.Generator) -> list[Visit]:
    """A visit to each domain, all its images in random order."""
    return [
        Visit(name, place, permutation(size, generator))
        for place, (name, size) in enumerate(zip(domains.names, domains.sizes, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class Shuffled(Kind):
    """The images of one domain in random order."""

    most, alone = 1, True
    about = "one domain in random order"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """One visit."""
        return one_after_another(in_turn(domains, generator), domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Recorded(Kind):
    """The images of one domain in the order of the data set."""

    most, alone = 1, True
    about = "one domain in the order of the data set"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """The rows as they are."""
        return as_one(domains.names[0], torch.arange(domains.sizes[0]), domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Mixed(Kind):
    """The images of all domains in one random order."""

    joins = True
    about = "all domains in one random order"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """One order of all rows."""
        return as_one("all domains", permutation(sum(domains.sizes), generator), domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Continual(Kind):
    """One domain after the other, each in random order, without a reset between them."""

    joins = True
    about = "one domain after the other, each in random order"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """A visit to each."""
        return one_after_another(in_turn(domains, generator), domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Gradual(Kind):
    """One shift whose strength rises and falls: the domains are its tiers, in order 1, 2, …, k, …, 2, 1.

    Every visit has all images of its tier in a new order, so that those below the highest tier come twice.
    Wang et al., "Continual Test-Time Domain Adaptation", CVPR 2022, section 4.2.
    """

    fewest, joins = 2, True
    about = "one shift that grows stronger tier by tier and weaker again, each visit to a tier in a new order"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """The domains up to the last one, and down again without it."""
        up = [(tier, "up") for tier in range(len(domains.sizes))]
        down = [(tier, "down") for tier in reversed(range(len(domains.sizes) - 1))]
        visits = [
            Visit(f"{domains.names[tier]}, {way}", tier, permutation(domains.sizes[tier], generator))
            for tier, way in up + down
        ]
        return one_after_another(visits, domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Recurring(Kind):
    """The continual stream several times, each pass in a new order within each domain.

    Hoang et al., "Persistent Test-time Adaptation in Recurring Testing Scenarios", NeurIPS 2024.
    """

    passes: int = option(20, low=1)

    @property
    def about(self) -> str:
        """With the number of passes."""
        return f"one domain after the other, {self.passes} times over, each visit in a new order"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """Pass after pass; a segment is a visit."""
        visits = [
            visit._replace(name=f"pass {number}: {visit.name}")
            for number in range(1, self.passes + 1)
            for visit in in_turn(domains, generator)
        ]
        return one_after_another(visits, domains.sizes)


@dataclass(frozen=True, kw_only=True)
class Abrupt(Kind):
    """Stretches of one domain each, cut at random places and joined in random order.

    The images of a domain of n are cut at random places into n / stretch pieces, and the pieces of all
    domains come in random order.
    """

    fewest, joins = 2, True
    stretch: int = option(500, low=1)

    about = "stretches of one domain that end at random places"

    def drawn(self, domains: Domains, places: Places) -> str:
        """With the lengths of the stretches: pieces of one domain that happen to be neighbours are one."""
        lengths = [segment.images for segment in places.segments]
        between = f"{min(lengths):,} to {max(lengths):,}"
        return f"{len(lengths):,} stretches of one domain, of {between} images, that end at random places"

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """Each image once; neighbouring pieces of one domain are one visit."""
        pieces = [
            (domain, piece)
            for domain, size in enumerate(domains.sizes)
            for piece in _cut(permutation(size, generator), max(1, round(size / self.stretch)), generator)
        ]
        joined: list[tuple[int, Tensor]] = []
        for place in permutation(len(pieces), generator).tolist():
            domain, rows = pieces[place]
            if joined and joined[-1][0] == domain:
                joined[-1] = (domain, torch.cat([joined[-1][1], rows]))
            else:
                joined.append((domain, rows))
        visits = [
            Visit(f"{number}: {domains.names[domain]}", domain, rows)
            for number, (domain, rows) in enumerate(joined, 1)
        ]
        return one_after_another(visits, domains.sizes)


def _cut(rows: Tensor, pieces: int, generator: torch.Generator) -> list[Tensor]:
    """The rows in so many pieces, none of them empty, cut at random places."""
    cuts = permutation(len(rows) - 1, generator)[: pieces - 1].sort().values + 1
    return list(rows.tensor_split(cuts))


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


MOST_NOISE = 0.9


@dataclass(frozen=True, kw_only=True)
class Noisy(Kind):
    """The continual stream with images of no class at random places: row −1, label −1.

    Gong et al., "SoTTA: Robust Test-Time Adaptation on Noisy Data Streams", NeurIPS 2023.

    Args:
        share: of all images of the stream that are of no class.
    """

    share: float = option(0.2, low=0, high=MOST_NOISE)

    @property
    def about(self) -> str:
        """With the share."""
        return (
            f"one domain after the other, each in random order; {100 * self.share:g} % of the images, at "
            "random places, are of no class: uniform noise, textures and phase-scrambled images of the stream"
        )

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """An image of no class belongs to the domain and the segment of the image before it."""
        base = one_after_another(in_turn(domains, generator), domains.sizes)
        noise = round(len(base.rows) * self.share / (1 - self.share))
        if self.share and not noise:
            raise OptionError(
                f"expected a share of images of no class that is at least one in {len(base.rows)}, "
                f"got {self.share:g}"
            )
        real = torch.ones(len(base.rows) + noise, dtype=torch.bool)
        real[permutation(len(real), generator)[:noise]] = False
        before = (real.cumsum(0) - 1).clamp(min=0)
        rows = torch.where(real, base.rows[before], -1)
        lengths = torch.tensor([segment.images for segment in base.segments])
        segment = torch.arange(len(lengths)).repeat_interleave(lengths)[before]
        counts = segment.bincount(minlength=len(lengths)).tolist()
        segments = [Segment(old.name, count) for old, count in zip(base.segments, counts, strict=True)]
        return Places(rows, base.domains[before], tuple(segments))


_ALL = (
    Shuffled,
    Sorted,
    Mixed,
    Recorded,
    Continual,
    Gradual,
    Correlated,
    Recurring,
    Abrupt,
    Noisy,
    Imbalanced,
)
KINDS: Mapping[str, type[Kind]] = MappingProxyType({kind.__name__.lower(): kind for kind in _ALL})
