"""The numbers that the paper prints, by our names, with the doubts about some of them."""

import json
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from equipoise.research.report.results import Scope, Variant

PAPER_NAMES = {
    "digits": "Digits",
    "digits-c": "Digits-C",
    "pacs": "PACS",
    "pacs-c": "PACS-C",
    "office-home": "HomeOffice",
    "office-home-c": "HomeOffice-C",
    "tiny-imagenet-c": "TIN-C",
    "smallcnn": "SmallCNN",
    "efficientnet_b0": "EfficientNetB0",
    "mobilenet_v1": "MobileNet",
}
ROWS = {"No Adapt": "source", "DEC": "dec", "T3A": "t3a", "ETA": "eta", "TENT": "tent", "SoTTA": "sotta"}
"""The paper's algorithms in its order, with the methods of the registry."""
VARIANCE, SIGMA, AVERAGE = "sigma2_max", "σ²_max", "average"
"""The row with the largest variance over domains, in the file and in tables; a column of averages."""
CLAIMED = frozenset({"tab:HO_metrics", "tab:TIN_C_metrics", "tab:TIN_C_metrics_mobilenet"})
"""The tables whose captions say that DEC's ECE and NLL are better than the second best with p < 0.01."""


class Printed(NamedTuple):
    """A printed number: its standard deviation over domains, whether it is bold, why it is doubtful."""

    value: float
    std: float | None
    bold: bool
    doubt: str


class PrintedTable(NamedTuple):
    """A table of the paper; `columns` are, for each metric, "average", targets, or "Tier 1" to "Tier 5"."""

    label: str
    data: str
    backbone: str
    metrics: tuple[str, ...]
    columns: tuple[str, ...]
    decimals: int
    cells: Mapping[tuple[str, str, str], Printed]
    """By metric, row (of `ROWS`, or `VARIANCE`) and column."""


class Experiment(NamedTuple):
    """The paper's settings for a data set; `own_size` is the side of the images that our data set gives."""

    epochs: int
    input_size: int
    own_size: int
    domains: int
    tiers: int
    seeds: list[int]

    def differences(self, scope: Scope) -> list[str]:
        """The differences of a setting from the paper's, in words."""
        size = scope.input_size or self.own_size
        told = {
            f"at most {scope.limit} images of a part": scope.limit is not None,
            f"{counted(scope.epochs, 'epoch')} (the paper: {self.epochs})": scope.epochs != self.epochs,
            f"images of {size} px (the paper: {self.input_size})": size != self.input_size,
            f"a {scope.order} stream (the paper's is taken to be shuffled)": scope.order != "shuffled",
        }
        return [words for words, differs in told.items() if differs]

    def lacking(self, domains: int, tiers: int, seeds: Collection[int]) -> str:
        """The part of the paper's experiment that is missing: "2 of 4 domains, 1 of 3 seeds"."""
        return shortfall(
            domains=(domains, self.domains),
            tiers=(tiers, self.tiers),
            seeds=(len(set(seeds) & set(self.seeds)), len(self.seeds)),
        )


def shortfall(**counts: tuple[int, int]) -> str:
    """The counts that are smaller than wanted: "2 of 4 domains, 1 of 3 seeds"."""
    return ", ".join(f"{got} of {wanted} {noun}" for noun, (got, wanted) in counts.items() if got < wanted)


def counted(number: int, noun: str) -> str:
    """A number of things: "1 epoch", "2,000 epochs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def paper_name(name: str) -> str:
    """The paper's name of a data set or a network of ours; the name itself where it has none."""
    return PAPER_NAMES.get(name, name)


@cache
def printed_tables() -> tuple[PrintedTable, ...]:
    """The tables of the paper, in its order."""
    tables = []
    for entry in _content()["tables"]:
        metrics, columns = entry.pop("metrics"), tuple(entry.pop("columns"))
        cells = {
            (metric, row, column): Printed(*cell)
            for metric, rows in metrics.items()
            for row, several in rows.items()
            for column, cell in zip(columns, several, strict=True)
        }
        tables.append(PrintedTable(**entry, metrics=tuple(metrics), columns=columns, cells=cells))
    return tuple(tables)


@cache
def experiments() -> dict[str, Experiment]:
    """The paper's settings for each data set."""
    return {data: Experiment(**entry) for data, entry in _content()["experiments"].items()}


@cache
def run_to_run() -> dict[str, dict[str, Printed]]:
    """The largest run-to-run variances of any algorithm and network, by data set and metric."""
    lists = _content()["run_to_run"]
    return {data: {metric: Printed(*cell) for metric, cell in cells.items()} for data, cells in lists.items()}


def paper_variants(runs: pd.DataFrame) -> tuple[dict[str, Variant], list[str]]:
    """The paper's algorithms among the rows of one scope, found by method and options, and notes.

    DEC is the method "dec" in the paper's reading with the mean of tau; the others are raw. The label is
    free; it decides only between several that fit: then the one that is called like the method is taken, or
    none.
    """
    found, notes = {}, []
    for row, method in ROWS.items():
        tempering = "mean" if method == "dec" else "none"
        rows = runs[(runs["method"] == method) & (runs["tempering"] == tempering)]
        options = dict(zip(rows["name"], rows["options"], strict=True))
        names = [
            name for name, each in options.items() if json.loads(each).get("reading", "paper") == "paper"
        ]
        chosen = names[0] if len(names) == 1 else method if method in names else None
        if chosen is not None:
            found[row] = Variant(chosen, tempering)
        if len(names) > 1:
            shown = f"{chosen} is shown" if chosen else f"none is shown; call one {method} in the recipe"
            notes.append(f"Several results are {row} as in the paper ({', '.join(names)}): {shown}.")
    return found, notes


def _content() -> Any:
    return json.loads(files(__package__).joinpath("paper_tables.json").read_text("utf-8"))
