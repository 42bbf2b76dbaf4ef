"""The scores of a group by method and tempering, shift and seed; different methods get different names."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from equipoise.bench.lines import Cell, Line, Scores

Metric = Literal["accuracy", "ece", "nll", "entropy", "brier"]
METRICS: tuple[Metric, ...] = ("accuracy", "ece", "nll", "entropy", "brier")
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
"""The temperings in the order in which they are shown; others follow."""
METHODS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "poise")
"""The methods in the order in which they are shown; others follow."""


class Shift(NamedTuple):
    """An unseen domain and, where there are several, how strong the shift is."""

    target: str
    tier: int | None


class Form(NamedTuple):
    """A method, by what the results call it, and what its logits are divided by."""

    label: str
    tempering: str


Runs = Mapping[Shift, Mapping[int, Scores]]
"""The scores of one form by shift, then by seed."""
Values = Mapping[Shift, Mapping[int, float]]
"""One metric of one form by shift, then by seed."""


@dataclass(frozen=True)
class Board:
    """The scores of one group.

    Attributes:
        runs: by form, in the order in which forms are shown.
        methods: the registry's name for each label.
        variants: the labels that stood for several methods, with the names that they have now.
    """

    runs: Mapping[Form, Runs]
    methods: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Every method and tempering, in the order in which they are shown."""
        return tuple(self.runs)

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """Every shift, by target and tier."""
        there = {shift for runs in self.runs.values() for shift in runs}
        return tuple(sorted(there, key=lambda shift: (shift.target, shift.tier or 0)))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Every seed."""
        return tuple(
            sorted({seed for runs in self.runs.values() for seeds in runs.values() for seed in seeds})
        )

    def values(self, form: Form, metric: Metric) -> Values:
        """One metric of one form; empty where it has no results."""
        return self._values.get((form, metric), {})

    @cached_property
    def _values(self) -> dict[tuple[Form, Metric], Values]:
        return {
            (form, metric): {
                shift: {seed: scores[metric] for seed, scores in seeds.items()}
                for shift, seeds in runs.items()
            }
            for form, runs in self.runs.items()
            for metric in METRICS
        }


def board(lines: Iterable[Line]) -> Board:
    """Sort the results of one group.

    A label that stands for several batch sizes or options (a recipe was changed between two runs into one
    folder) becomes several, each with what tells it apart: "tent [batch_size=16]". Seeds do not.
    """
    found = [(_variant(line["cell"]), line) for line in lines]
    names = _names({variant: line["cell"] for variant, line in found})
    runs: dict[Form, dict[Shift, dict[int, Scores]]] = {}
    methods: dict[str, str] = {}
    for variant, line in found:
        cell, scores = line["cell"], line["scores"]
        if scores is not None:
            form = Form(names[variant], cell["tempering"])
            methods[form.label] = cell["method"]
            shifts = runs.setdefault(form, {})
            shifts.setdefault(Shift(cell["target"], cell["tier"]), {})[cell["seed"]] = scores
    variants: dict[str, list[str]] = {}
    for (label, _), name in names.items():
        if name != label:
            variants.setdefault(label, []).append(name)

    def order(form: Form) -> tuple[object, ...]:
        return (*_rank(methods[form.label], METHODS), form.label, *_rank(form.tempering, TEMPERINGS))

    return Board(
        runs={form: runs[form] for form in sorted(runs, key=order)},
        methods=methods,
        variants={label: tuple(sorted(each)) for label, each in variants.items()},
    )


def _names(cells: Mapping[tuple[str, str], Cell]) -> dict[tuple[str, str], str]:
    """What each variant is called: its label, and where that has several, what tells them apart."""
    found = {variant: _traits(cell) for variant, cell in cells.items()}
    names = {}
    for (label, variant), traits in found.items():
        others = [other for (named, _), other in found.items() if named == label]
        told = [
            f"{name}={value}"
            for name, value in sorted(traits.items())
            if any(other.get(name) != value for other in others)
        ]
        absent = {name for other in others for name in other} - traits.keys()
        told += [f"no {name}" for name in sorted(absent)]
        names[label, variant] = f"{label} [{', '.join(told)}]" if told else label
    return names


def _variant(cell: Cell) -> tuple[str, str]:
    return cell["label"], json.dumps(_traits(cell), sort_keys=True)


def _traits(cell: Cell) -> dict[str, str]:
    """What makes a method another one; a seed of its own follows the cell's."""
    options = {name: json.dumps(value) for name, value in cell["options"].items() if name != "seed"}
    return {**options, "method": cell["method"], "batch_size": str(cell["batch_size"])}


def _rank(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    return (known.index(name), "") if name in known else (len(known), name)
