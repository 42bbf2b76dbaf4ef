"""Scores by method and tempering, shift and seed; different methods get different names."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from equipoise.bench.schema import Cell, CellResult, CellScores

Metric = Literal["accuracy", "ece", "nll", "entropy", "brier"]
METRICS: tuple[Metric, ...] = ("accuracy", "ece", "nll", "entropy", "brier")
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
"""The temperings in the order in which they are shown; others follow."""
METHODS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "poise")
"""The methods in the order in which they are shown; others follow."""


class ShiftKey(NamedTuple):
    """An unseen domain and the strength of the shift, where there are several strengths."""

    target: str
    tier: int | None


class MethodVariant(NamedTuple):
    """A method, by its label in the results, with the tempering of its logits."""

    label: str
    tempering: str


Runs = Mapping[ShiftKey, Mapping[int, CellScores]]
"""The scores of one variant by shift, then by seed."""
Values = Mapping[ShiftKey, Mapping[int, float]]
"""One metric of one variant by shift, then by seed."""


@dataclass(frozen=True)
class VariantScores:
    """The scores of one table by method variant.

    Attributes:
        runs: by variant, in the order in which variants are shown.
        methods: the registry's name for each label.
        split_labels: the labels of several methods each, with the names that replace them.
    """

    runs: Mapping[MethodVariant, Runs]
    methods: Mapping[str, str] = field(default_factory=dict)
    split_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def variants(self) -> tuple[MethodVariant, ...]:
        """Every method and tempering, in the order in which they are shown."""
        return tuple(self.runs)

    @cached_property
    def shifts(self) -> tuple[ShiftKey, ...]:
        """Every shift, by target and tier."""
        there = {shift for runs in self.runs.values() for shift in runs}
        return tuple(sorted(there, key=lambda shift: (shift.target, shift.tier or 0)))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Every seed."""
        return tuple(
            sorted({seed for runs in self.runs.values() for seeds in runs.values() for seed in seeds})
        )

    def values(self, variant: MethodVariant, metric: Metric) -> Values:
        """One metric of one variant; empty where it has no results."""
        return self._values.get((variant, metric), {})

    @cached_property
    def _values(self) -> dict[tuple[MethodVariant, Metric], Values]:
        return {
            (variant, metric): {
                shift: {seed: scores[metric] for seed, scores in seeds.items()}
                for shift, seeds in runs.items()
            }
            for variant, runs in self.runs.items()
            for metric in METRICS
        }


def scores_by_variant(lines: Iterable[CellResult]) -> VariantScores:
    """Sort the results of one table by method variant.

    A label that stands for several batch sizes or options (a recipe was changed between two runs into one
    folder) becomes several, each with what tells it apart: "tent [batch_size=16]". Seeds do not.
    """
    found = [(_identity(line["cell"]), line) for line in lines]
    names = _names({identity: line["cell"] for identity, line in found})
    runs: dict[MethodVariant, dict[ShiftKey, dict[int, CellScores]]] = {}
    methods: dict[str, str] = {}
    for identity, line in found:
        cell, scores = line["cell"], line["scores"]
        if scores is not None:
            variant = MethodVariant(names[identity], cell["tempering"])
            methods[variant.label] = cell["method"]
            shifts = runs.setdefault(variant, {})
            shifts.setdefault(ShiftKey(cell["target"], cell["tier"]), {})[cell["seed"]] = scores
    split_labels: dict[str, list[str]] = {}
    for (label, _), name in names.items():
        if name != label:
            split_labels.setdefault(label, []).append(name)

    def order(variant: MethodVariant) -> tuple[object, ...]:
        return (*_rank(methods[variant.label], METHODS), variant.label, *_rank(variant.tempering, TEMPERINGS))

    return VariantScores(
        runs={variant: runs[variant] for variant in sorted(runs, key=order)},
        methods=methods,
        split_labels={label: tuple(sorted(each)) for label, each in split_labels.items()},
    )


def _names(cells: Mapping[tuple[str, str], Cell]) -> dict[tuple[str, str], str]:
    """The name of each method: its label and, where several methods share the label, their differences."""
    found = {identity: _traits(cell) for identity, cell in cells.items()}
    names = {}
    for (label, identity), traits in found.items():
        others = [other for (named, _), other in found.items() if named == label]
        told = [
            f"{name}={value}"
            for name, value in sorted(traits.items())
            if any(other.get(name) != value for other in others)
        ]
        absent = {name for other in others for name in other} - traits.keys()
        told += [f"no {name}" for name in sorted(absent)]
        names[label, identity] = f"{label} [{', '.join(told)}]" if told else label
    return names


def _identity(cell: Cell) -> tuple[str, str]:
    return cell["label"], json.dumps(_traits(cell), sort_keys=True)


def _traits(cell: Cell) -> dict[str, str]:
    """What makes a method another one; a seed of its own follows the cell's."""
    options = {name: json.dumps(value) for name, value in cell["options"].items() if name != "seed"}
    return {**options, "method": cell["method"], "batch_size": str(cell["batch_size"])}


def _rank(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    return (known.index(name), "") if name in known else (len(known), name)
