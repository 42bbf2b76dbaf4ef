"""Streams that differ in when which domain comes: all at once, in turn, up and down, again and again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.options import option
from equipoise.streams.places import (
    Domains,
    Kind,
    Places,
    Visit,
    as_one,
    in_turn,
    one_after_another,
    permutation,
)


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
