"""Means and deviations over seeds and domains, for every method and tempering at every place of one scope.

A mean over seeds comes first, so that every domain counts the same however many seeds it has. Deviations are
those of a sample, √(Σ(x − x̄)²/(n − 1)): from the four domains of the paper's Home Office table this gives its
sigma²_max (0.117, 0.0117 and 6.469; printed are 0.116, 0.011 and 6.467), and division by n does not.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import pandas as pd

from equipoise.report.results import METRICS, Results, Scope, Variant, tempering_rank, variants

Kind = Literal["average", "tier", "domain"]
Spread = Literal["seeds", "domains"]
Coverage = frozenset[tuple[str, int]]
"""The shifts and seeds that a number is of; numbers of different ones are not compared."""


class Place(NamedTuple):
    """A method by name with a tempering: on average, at one tier or on one domain."""

    name: str
    tempering: str
    kind: Kind = "average"
    where: str = ""


class Summary(NamedTuple):
    """The scores at one place.

    Attributes:
        mean: over the shifts of their means over seeds, by metric.
        std: of the means over seeds from domain to domain, and of the averages over shifts from seed to seed
            (of the seeds that have every shift of the place); NaN for fewer than two.
        coverage: the shifts and seeds.
    """

    mean: Mapping[str, float]
    std: Mapping[Spread, Mapping[str, float]]
    coverage: Coverage


@dataclass(frozen=True)
class Part:
    """The results of one scope with their summaries."""

    scope: Scope
    runs: pd.DataFrame

    @cached_property
    def at(self) -> dict[Place, Summary]:
        """The summaries by place."""
        return summarise(self.runs)

    @cached_property
    def variants(self) -> list[Variant]:
        """Every method and tempering, in the order in which they are shown."""
        return variants(self.runs)

    @cached_property
    def names(self) -> list[str]:
        """The methods."""
        return list(dict.fromkeys(variant.name for variant in self.variants))

    @cached_property
    def methods(self) -> dict[str, str]:
        """The name in the registry of each method."""
        return dict(zip(self.runs["name"], self.runs["method"], strict=True))

    @cached_property
    def temperings(self) -> list[str]:
        """The temperings, in the order in which they are shown."""
        return sorted({variant.tempering for variant in self.variants}, key=tempering_rank)

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted(set(self.runs["seed"].tolist()))

    @cached_property
    def tiers(self) -> list[str]:
        """The tiers; empty where the data set has none."""
        return [str(tier) for tier in sorted(set(self.runs["tier"].tolist()) - {0})]

    @cached_property
    def targets(self) -> list[str]:
        """The unseen domains."""
        return sorted(set(self.runs["target"].tolist()))

    @property
    def axis(self) -> tuple[Kind, list[str]]:
        """The places along the axis of figures: the tiers, or the domains where there are no tiers."""
        return ("tier", self.tiers) if self.tiers else ("domain", self.targets)

    @cached_property
    def spread(self) -> Spread:
        """The deviations beside the means: over the seeds or, where no mean has two of them, over the domains."""
        several = any(not math.isnan(each.std["seeds"]["ece"]) for each in self.at.values())
        return "seeds" if several else "domains"

    def whole(self, variant: Variant) -> bool:
        """Whether a method and tempering has every shift and seed that any of them has."""
        return not self.missing(Place(*variant))

    def missing(self, place: Place) -> str:
        """The part of the scope's shifts and seeds that a place lacks, in words."""
        found = self.at.get(place)
        noun = "shift" if self.tiers and place.kind != "tier" else "domain"
        return gap(found.coverage if found else frozenset(), self._shifts[place[2:]], self.seeds, noun)

    @cached_property
    def _shifts(self) -> dict[tuple[str, ...], int]:
        shifts: dict[tuple[str, ...], set[str]] = {}
        for place, found in self.at.items():
            shifts.setdefault(place[2:], set()).update(shift for shift, _ in found.coverage)
        return {where: len(each) for where, each in shifts.items()}


def parts(results: Results) -> list[Part]:
    """The results by scope."""
    return [Part(scope, runs) for scope, runs in results.by_scope.items()]


def summarise(runs: pd.DataFrame) -> dict[Place, Summary]:
    """The summaries of one scope's rows: on average, by tier and by domain."""
    keys, metrics = list(Place._fields), list(METRICS)
    tiers = runs[runs["tier"] > 0]
    parts = [
        runs.assign(kind="average", where=""),
        tiers.assign(kind="tier", where=tiers["tier"].astype(str)),
        runs.assign(kind="domain", where=runs["target"]),
    ]
    columns = [*keys, "shift", "seed", *metrics]
    placed = pd.concat([part[columns] for part in parts], ignore_index=True)
    placed["shifts"] = placed.groupby(keys)["shift"].transform("nunique")
    by_shift = placed.groupby([*keys, "shift"])[metrics].mean().groupby(keys)
    by_seed = placed.groupby([*keys, "seed"])
    whole = by_seed["shift"].nunique() == by_seed["shifts"].first()
    over_seeds = by_seed[metrics].mean()[whole].groupby(keys).std().to_dict("index")
    means, over_domains = by_shift.mean().to_dict("index"), by_shift.std().to_dict("index")
    nothing = dict.fromkeys(metrics, float("nan"))
    shifts, seeds = placed["shift"].tolist(), placed["seed"].tolist()
    return {
        Place(*key): Summary(
            mean=means[key],
            std={"domains": over_domains[key], "seeds": over_seeds.get(key, nothing)},
            coverage=frozenset((shifts[row], seeds[row]) for row in rows),
        )
        for key, rows in placed.groupby(keys).indices.items()
    }


def gap(coverage: Coverage, shifts: int, seeds: Collection[int], noun: str = "domain") -> str:
    """The part of so many shifts with these seeds each that is missing: "3 of 4 domains, 1 of 3 seeds"."""
    if not coverage:
        return "no results"
    counts: dict[str, int] = {}
    for shift, seed in coverage:
        counts[shift] = counts.get(shift, 0) + (seed in seeds)
    told = []
    if len(counts) < shifts:
        told.append(f"{len(counts)} of {shifts} {noun}s")
    fewest = min(counts.values())
    if fewest < len(seeds):
        few = f"{fewest} of {len(seeds)} seeds"
        told.append(few if len(set(counts.values())) == 1 else f"on some {noun}s {few}")
    return ", ".join(told)
