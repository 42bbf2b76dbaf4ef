"""The committed comparison as a frame, by setting: a data set at a tier, in the order of a kind of stream."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

import pandas as pd

from equipoise.research.report.results import BETTER, METHOD_ORDER, rank
from equipoise.research.report.significance import alike_best

STREAMS = ("continual", "correlated", "recurring", "noisy")
DATA = {"digits-c": "Digits", "pacs-c": "PACS", "tiny-imagenet-c": "TinyImageNet-C"}
NETWORKS = {"smallcnn": "SmallCNN", "efficientnet_b0": "EfficientNet-B0", "mobilenet_v1": "MobileNet"}
RAW, REHEARSED, SOURCE = "none", "rehearsed", "source"
BY_DOMAIN = {"accuracy": "accuracy_by_domain", "nll": "nll_by_domain"}
"""The metrics that are known for each domain of a stream, so that domains are the pairs of a test."""


class Place(NamedTuple):
    """A data set and network, at a tier."""

    data: str
    backbone: str
    tier: int

    def __str__(self) -> str:
        return f"{DATA[self.data]}, {NETWORKS[self.backbone]}, tier {self.tier}"

    @property
    def short(self) -> str:
        """The data set, with its tier where it has several."""
        return DATA[self.data] + (f" tier {self.tier}" if self.data == "tiny-imagenet-c" else "")


class Setting(NamedTuple):
    """A place and a kind of stream."""

    place: Place
    stream: str


Matrix: TypeAlias = Mapping[Setting, Mapping[str, float]]
"""A number for each setting and method."""


def read(folder: Path) -> pd.DataFrame:
    """The rows of cells.csv."""
    return pd.read_csv(folder / "cells.csv").rename(columns={"order": "stream", "label": "name"})


def places(cells: pd.DataFrame) -> list[Place]:
    """The places that there are results of, in the page's order."""
    there = cells[["data", "backbone", "tier"]].drop_duplicates().itertuples(index=False, name=None)
    found = [Place(str(data), str(backbone), int(tier)) for data, backbone, tier in there]
    return sorted(found, key=lambda place: (list(DATA).index(place.data), place.backbone, place.tier))


def settings(cells: pd.DataFrame) -> list[Setting]:
    """The settings that there are results of."""
    met = [Setting(place, stream) for place in places(cells) for stream in STREAMS]
    return [setting for setting in met if len(at(cells, setting))]


def at(cells: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """The rows of a setting."""
    place = setting.place
    here = (cells["data"] == place.data) & (cells["backbone"] == place.backbone)
    return cells[here & (cells["tier"] == place.tier) & (cells["stream"] == setting.stream)]


def whole(rows: pd.DataFrame, tempering: str) -> pd.DataFrame:
    """The rows with a tempering, of methods that have every target and seed which others have with it."""
    rows = rows[rows["tempering"] == tempering]
    runs = rows.groupby("name")["target"].transform("size")
    return rows[runs == len(rows[["target", "seed"]].drop_duplicates())]


def with_rehearsal(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows, with any tempering, of runs that have a rehearsed one: the same models on both sides."""
    run = ["data", "backbone", "tier", "stream", "target", "seed", "name"]
    rehearsed = cells.loc[cells["tempering"] == REHEARSED, run]
    return cells.merge(rehearsed, on=run)


def names(cells: pd.DataFrame) -> list[str]:
    """The methods, in the order in which reports show them."""
    return sorted(cells["name"].unique(), key=lambda name: (*rank(name.split("-")[0], METHOD_ORDER), name))


def matrix(cells: pd.DataFrame, metric: str, tempering: str) -> Matrix:
    """The mean over targets and seeds, by setting and then by method.

    A method that lacks a target or a seed of a setting is left out of it: its mean would be of other streams.
    """
    found: dict[Setting, dict[str, float]] = {}
    for setting in settings(cells):
        rows = whole(at(cells, setting), tempering)
        rows = rows[rows[metric].notna()]
        means = rows.groupby("name")[metric].mean()
        found[setting] = {name: float(means[name]) for name in names(cells) if name in means.index}
    return found


def gains(cells: pd.DataFrame) -> Matrix:
    """The accuracy of each method less that of no adaptation, by setting; raw answers."""
    return {
        setting: {name: value - by_name[SOURCE] for name, value in by_name.items()}
        for setting, by_name in matrix(cells, "accuracy", RAW).items()
    }


def complete(table: Matrix) -> list[str]:
    """The methods that have a number in every setting."""
    first, *others = table.values()
    return [name for name in first if all(name in by_name for by_name in others)]


def mean_of(table: Matrix, name: str, stream: str | None = None) -> float:
    """The mean of a method over all settings, or those of a kind of stream; NaN where it lacks one."""
    met = [by_name for setting, by_name in table.items() if stream in (None, setting.stream)]
    return fmean(by_name.get(name, math.nan) for by_name in met) if met else math.nan


def by_mean(gain: Matrix) -> list[str]:
    """The methods that have every setting, by their mean gain, best first; then those that lack some."""
    whole_ones = complete(gain)
    others = dict.fromkeys(name for by_name in gain.values() for name in by_name if name not in whole_ones)
    return [*sorted(whole_ones, key=lambda name: -mean_of(gain, name)), *others]


def of_place(table: Matrix, place: Place) -> Matrix:
    """The settings of one place."""
    return {setting: by_name for setting, by_name in table.items() if setting.place == place}


def by_pass(cells: pd.DataFrame, place: Place) -> dict[str, list[float]]:
    """The mean accuracy over targets and seeds in each pass of the recurring stream; raw answers."""
    rows = whole(at(cells, Setting(place, "recurring")), RAW)
    values = rows["accuracy_by_pass"].str.split(expand=True).astype(float)
    found: dict[str, list[float]] = {}
    for name in names(cells):
        own = values[rows["name"] == name]
        if len(own):
            found[name] = own.to_numpy().mean(axis=0).tolist()
    return found


def marked(cells: pd.DataFrame, setting: Setting, metric: str, tempering: str) -> list[str]:
    """The best method of a setting first, then those that are indistinguishable from it.

    By paired t-tests, adjusted by Holm. A pair is a domain of a target's stream, for accuracy and NLL, or a
    target, for other metrics; each with the mean over seeds.
    """
    rows = whole(at(cells, setting), tempering)
    if metric in BY_DOMAIN:
        rows = by_domain(rows, metric)
    found = alike_best(rows.assign(shift=rows["target"]), metric, BETTER.get(metric, -1), ["shift"])
    return [variant.name for variant in found]


def by_domain(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row for each domain of every stream, whose target is the target with the number of the domain."""
    split = rows.assign(**{metric: rows[BY_DOMAIN[metric]].str.split()})
    split["domain"] = split[metric].map(lambda values: list(range(len(values))))
    long = split.explode([metric, "domain"], ignore_index=True)
    target = long["target"].astype(str) + "/" + long["domain"].astype(str)
    return long.assign(target=target, **{metric: long[metric].astype(float)})
