"""The places of a stream: which image of which domain comes when, as indices alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.options import check_options

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
"""The name of a kind of stream (`order` in recipes and results); docs/streams.md shows each kind."""


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
