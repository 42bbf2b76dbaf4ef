"""The numbers that the paper prints, by our names, with what is doubtful about some of them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from equipoise.report.results import Setting, Variant

DATA = {"Digits": "digits", "PACS": "pacs", "HomeOffice": "office-home", "TIN-C": "tiny-imagenet-c"}
BACKBONES = {"SmallCNN": "smallcnn", "EfficientNetB0": "efficientnet_b0", "MobileNet": "mobilenet_v1"}
ROWS = {
    "No Adapt": "source",
    "DEC": "dec",
    "T3A": "t3a",
    "ETA": "eta",
    "TENT": "tent",
    "SoTTA": "sotta",
}
"""The paper's algorithms in its order, with the methods of the registry."""
VARIANCE = "sigma2_max"
"""The row with the largest variance over domains of any algorithm."""
SIGMA = "σ²_max"
"""What that row is called in ours."""
AVERAGE = "average"
RUN_TO_RUN = ("accuracy", "ece", "entropy", "nll")
"""The order of the four numbers of a list of run-to-run variances, as far as the paper says."""

CLAIMED = frozenset({"tab:HO_metrics", "tab:TIN_C_metrics", "tab:TIN_C_metrics_mobilenet"})
"""The tables whose captions say that DEC's ECE and NLL are better than the second best with p < 0.01."""

_RUN_TO_RUN_ROW = "run to run"


class Printed(NamedTuple):
    """A printed number: its standard deviation over domains, whether it is bold, why it is doubtful."""

    value: float
    std: float | None = None
    bold: bool = False
    suspicious: str = ""


class PrintedTable(NamedTuple):
    """A table of the paper.

    Attributes:
        label: what its LaTeX calls it; two tables are called "tab:pacs_avg_mob".
        data: our name of the data set.
        backbone: our name of the network.
        metrics: in the order of the columns.
        columns: of each metric: "average", targets, or "Tier 1" to "Tier 5".
        decimals: as printed.
        cells: by metric, row (a name of `ROWS`, or `VARIANCE`) and column.
    """

    label: str
    data: str
    backbone: str
    metrics: tuple[str, ...]
    columns: tuple[str, ...]
    decimals: int
    cells: Mapping[tuple[str, str, str], Printed]


@dataclass(frozen=True)
class Experiment:
    """How the paper ran a data set.

    Attributes:
        epochs: of the source training.
        input_size: the side of the images that the network gets.
        own_size: the side that our data set gives; enlarged inside the model where the paper's is larger.
        domains: how many.
        tiers: how many strengths each shift has; 0 where it has just one.
        seeds: of the runs.
    """

    epochs: int
    input_size: int
    own_size: int
    domains: int
    tiers: int
    seeds: tuple[int, ...]

    def differences(self, setting: Setting) -> list[str]:
        """What a setting has otherwise, in words; empty where it is the paper's."""
        told = []
        if setting.limit is not None:
            told.append(f"at most {setting.limit} images of a part")
        if setting.epochs != self.epochs:
            told.append(f"{counted(setting.epochs, 'epoch')} (the paper: {self.epochs})")
        size = setting.input_size or self.own_size
        if size != self.input_size:
            told.append(f"images of {size} px (the paper: {self.input_size})")
        if setting.order != "shuffled":
            told.append(f"a stream that is {setting.order} (the paper's is taken to be shuffled)")
        return told

    def lacking(self, domains: int, tiers: int, seeds: Collection[int]) -> str:
        """What results of so much lack of the paper's: "2 of 4 domains, 1 of 3 seeds"; empty for nothing."""
        parts = [
            (domains, self.domains, "domains"),
            (tiers, self.tiers, "tiers"),
            (len(set(seeds) & set(self.seeds)), len(self.seeds), "seeds"),
        ]
        return ", ".join(f"{there} of {wanted} {noun}" for there, wanted, noun in parts if there < wanted)


def counted(number: int, noun: str) -> str:
    """A number of things: "1 epoch", "2 epochs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@cache
def printed_tables() -> tuple[PrintedTable, ...]:
    """The tables of the paper, in its order."""
    content = _content()
    return tuple(_table(entry, content["suspicious"]) for entry in content["tables"])


@cache
def experiments() -> dict[str, Experiment]:
    """How the paper ran each data set, by our names."""
    content = _content()
    seeds = tuple(content["seeds"])
    return {DATA[name]: Experiment(**entry, seeds=seeds) for name, entry in content["experiments"].items()}


@cache
def run_to_run() -> dict[str, dict[str, Printed]]:
    """The largest run-to-run variances of any algorithm and network, by our names of the data sets."""
    content = _content()
    return {
        DATA[name]: {
            metric: Printed(
                values[metric],
                suspicious=_doubts(content["suspicious"], name, None, metric, _RUN_TO_RUN_ROW, AVERAGE),
            )
            for metric in RUN_TO_RUN
        }
        for name, values in content["run_to_run_variance"].items()
    }


def paper_variants(runs: pd.DataFrame) -> tuple[dict[str, Variant], list[str]]:
    """The paper's algorithms among the rows of one scope, found by method and options, and notes about doubts.

    DEC is the method "dec" in the paper's reading with the mean of tau; the others are raw. The label is free;
    it decides only between several that fit: then the one that is called like the method is taken, or none.
    """
    found, notes = {}, []
    for row, method in ROWS.items():
        tempering = "mean" if method == "dec" else "none"
        rows = runs[(runs["method"] == method) & (runs["tempering"] == tempering)]
        names = [
            str(name)
            for name, options in dict(zip(rows["name"], rows["options"], strict=True)).items()
            if json.loads(options).get("reading", "paper") == "paper"
        ]
        chosen = names[0] if len(names) == 1 else method if method in names else None
        if chosen is not None:
            found[row] = Variant(chosen, tempering)
        if len(names) > 1:
            shown = f"{chosen} is shown" if chosen else f"none is shown; call one {method} in the recipe"
            notes.append(f"Several results are {row} as in the paper ({', '.join(names)}): {shown}.")
    return found, notes


def paper_name(name: str) -> str:
    """What the paper calls a data set or a network of ours; the name itself where it has none."""
    return {ours: theirs for theirs, ours in (DATA | BACKBONES).items()}.get(name, name)


def tier_of(column: str) -> int | None:
    """The tier of a column "Tier 3"."""
    return int(column.removeprefix("Tier ")) if column.startswith("Tier ") else None


def _content() -> Any:
    return json.loads(
        files("equipoise.report").joinpath("paper_tables.json").read_text(encoding="utf-8")
    )


def _table(entry: Any, doubts: Any) -> PrintedTable:
    data, backbone, columns = entry["data"], entry["backbone"], entry["columns"]
    cells = {
        (metric, row, column): Printed(
            value=values["values"][position],
            std=values["std"][position] if "std" in values else None,
            bold=column in values.get("bold", ()),
            suspicious=_doubts(doubts, data, backbone, metric, row, column),
        )
        for metric, rows in entry["metrics"].items()
        for row, values in rows.items()
        for position, column in enumerate(columns)
    }
    return PrintedTable(
        label=entry["label"],
        data=DATA[data],
        backbone=BACKBONES[backbone],
        metrics=tuple(entry["metrics"]),
        columns=tuple(columns),
        decimals=entry["decimals"],
        cells=cells,
    )


def _doubts(doubts: Any, data: str, backbone: str | None, metric: str, row: str, column: str) -> str:
    return "; ".join(
        doubt["reason"]
        for doubt in doubts
        if (doubt["data"], doubt["backbone"], doubt["metric"]) == (data, backbone, metric)
        and row in doubt["algorithms"]
        and column in doubt["columns"]
    )
