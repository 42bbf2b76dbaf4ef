"""The results of one scope: means and deviations of every method and tempering at every place.

A mean over seeds comes first, so that every domain counts the same however many seeds it has. Deviations are
those of a sample, √(Σ(x − x̄)²/(n − 1)): from the four domains of the paper's Home Office table this gives its
sigma²_max (0.117, 0.0117 and 6.469; printed are 0.116, 0.011 and 6.467), and division by n does not.
"""

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from equipoise.research.report.paper import paper_variants
from equipoise.research.report.results import METRICS, TEMPERINGS, Results, Scope, Variant, rank, variants

Spread = Literal["seeds", "domains"]
Coverage = frozenset[tuple[str, int]]
"""The shifts and seeds that a number is of; numbers of different ones are not compared."""


class Place(NamedTuple):
    """A method with a tempering, and `kind` and `where` of its results: ("average", ""), ("tier", "3"), …."""

    name: str
    tempering: str
    kind: str = "average"
    where: str = ""


class PlaceScores(NamedTuple):
    """The scores at one place: means over the shifts of means over seeds; deviations over either; the runs.

    The deviation over seeds is of the seeds that have every shift of the place; NaN for fewer than two.
    """

    mean: Mapping[str, float]
    std: Mapping[Spread, Mapping[str, float]]
    coverage: Coverage


class Part:
    """The rows of one scope with their summaries."""

    def __init__(self, scope: Scope, runs: pd.DataFrame) -> None:
        self.scope, self.runs, self.variants = scope, runs, variants(runs)
        self.at = summarise(runs)
        self.papers, self.paper_notes = paper_variants(runs)
        """The paper's algorithms among the methods, by its names, and notes where several fit."""
        self.names = list(dict.fromkeys(variant.name for variant in self.variants))
        self.methods: dict[str, str] = dict(zip(runs["name"], runs["method"], strict=True))
        self.temperings = sorted(
            {each.tempering for each in self.variants}, key=lambda each: rank(each, TEMPERINGS)
        )
        self.seeds = sorted(set(runs["seed"].tolist()))
        self.tiers = [str(tier) for tier in sorted(set(runs["tier"].tolist()) - {0})]
        self.targets = sorted(set(runs["target"].tolist()))
        self.axis = ("tier", self.tiers) if self.tiers else ("domain", self.targets)
        """The places along the axis of figures: the tiers, or the domains where there are no tiers."""

    @cached_property
    def spread(self) -> Spread:
        """The deviations beside the means: over the seeds or, where no mean has two, over the domains."""
        several = any(not math.isnan(each.std["seeds"]["ece"]) for each in self.at.values())
        return "seeds" if several else "domains"

    def of(self, variant: Variant) -> pd.DataFrame:
        """The rows of one method and tempering."""
        return self._rows[variant]

    @cached_property
    def _rows(self) -> dict[Variant, pd.DataFrame]:
        rows: dict[Any, Any] = self.runs.groupby(["name", "tempering"]).indices
        return {Variant(*key): self.runs.iloc[at] for key, at in rows.items()}

    def whole(self, variant: Variant) -> bool:
        """Whether a method and tempering has every shift and seed that any of them has."""
        return not self.missing(Place(*variant))

    def missing(self, place: Place) -> str:
        """The part of the scope's shifts and seeds that a place lacks, in words."""
        noun = "shift" if self.tiers and place.kind != "tier" else "domain"
        coverage = self.at[place].coverage if place in self.at else frozenset()
        return gap(coverage, self._shifts[place[2:]], self.seeds, noun)

    @cached_property
    def _shifts(self) -> dict[tuple[str, ...], int]:
        shifts: dict[tuple[str, ...], set[str]] = {}
        for place, found in self.at.items():
            shifts.setdefault(place[2:], set()).update(shift for shift, _ in found.coverage)
        return {where: len(each) for where, each in shifts.items()}


def parts(results: Results) -> list[Part]:
    """The results by scope."""
    return [Part(scope, runs) for scope, runs in results.by_scope.items()]


def summarise(runs: pd.DataFrame) -> dict[Place, PlaceScores]:
    """The summaries of one scope's rows: on average, by tier and by domain."""
    keys, metrics = list(Place._fields), list(METRICS)
    tiers = runs[runs["tier"] > 0]
    placed = [
        runs.assign(kind="average", where=""),
        tiers.assign(kind="tier", where=tiers["tier"].astype(str)),
        runs.assign(kind="domain", where=runs["target"]),
    ]
    frame = pd.concat([each[[*keys, "shift", "seed", *metrics]] for each in placed], ignore_index=True)
    frame["shifts"] = frame.groupby(keys)["shift"].transform("nunique")
    by_shift = frame.groupby([*keys, "shift"])[metrics].mean().groupby(keys)
    by_seed = frame.groupby([*keys, "seed"])
    whole = by_seed["shift"].nunique() == by_seed["shifts"].first()
    over_seeds: Any = by_seed[metrics].mean()[whole].groupby(keys).std().to_dict("index")
    means: Any = by_shift.mean().to_dict("index")
    over_domains: Any = by_shift.std().to_dict("index")
    groups: dict[Any, Any] = frame.groupby(keys).indices
    nothing = dict.fromkeys(metrics, math.nan)
    pairs = list(zip(frame["shift"].tolist(), frame["seed"].tolist(), strict=True))
    return {
        Place(*key): PlaceScores(
            means[key],
            {"domains": over_domains[key], "seeds": over_seeds.get(key, nothing)},
            frozenset(pairs[row] for row in rows),
        )
        for key, rows in groups.items()
    }


def pooled(runs: pd.DataFrame) -> dict[str, list[float]] | None:
    """The bins of some rows on average, as shares: over the seeds of a shift, then over the shifts.

    However many images a shift has, it counts as much as any other. None if no row has reliability sums.
    """
    shifts: dict[str, list[Any]] = {}
    for shift, sums in zip(runs["shift"], runs["reliability"], strict=True):
        if sums is not None and sum(sums["count"]):
            part = np.array([sums["count"], sums["confidence"], sums["correct"]], dtype=float)
            shifts.setdefault(shift, []).append(part / sum(sums["count"]))
    if not shifts:
        return None
    bins = np.mean([np.mean(each, axis=0) for each in shifts.values()], axis=0)
    return dict(zip(("count", "confidence", "correct"), bins.tolist(), strict=True))


def gap(coverage: Coverage, shifts: int, seeds: Collection[int], noun: str = "domain") -> str:
    """The part of so many shifts with these seeds each that is missing: "3 of 4 domains, 1 of 3 seeds"."""
    if not coverage:
        return "no results"
    counts = {shift: 0 for shift, _ in coverage}
    for shift, seed in coverage:
        counts[shift] += seed in seeds
    fewest, told = min(counts.values()), []
    if len(counts) < shifts:
        told.append(f"{len(counts)} of {shifts} {noun}s")
    if fewest < len(seeds):
        where = "" if len(set(counts.values())) == 1 else f"on some {noun}s "
        told.append(f"{where}{fewest} of {len(seeds)} seeds")
    return ", ".join(told)
