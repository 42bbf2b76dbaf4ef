"""The committed results as frames, and the means that the page is made of.

A row of `cells` is a run of a method on a stream, scored by one protocol with one tempering. Two more parts
of a run are rows like temperings: "oracle" (the scores at the best single temperature, which was found with
the labels of the stream) and "estimate" (of the accuracy, without labels). `tier` is 0 where there are none.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.pages import told
from equipoise.research.report.paper import ROWS, printed_tables
from equipoise.research.report.results import BETTER, Variant
from equipoise.research.report.significance import Comparison, against_best_other
from equipoise.research.report.table import DOUBTFUL

FOLDER = Path(__file__).parent

NAMES = {"digits": "Digits", "pacs": "PACS", "tiny-imagenet-c": "TinyImageNet-C"}
NETWORKS = {"smallcnn": "SmallCNN", "efficientnet_b0": "EfficientNet-B0", "mobilenet_v1": "MobileNet"}
NETWORKS_OF = {
    "digits": ("smallcnn",),
    "pacs": ("efficientnet_b0", "mobilenet_v1"),
    "tiny-imagenet-c": ("efficientnet_b0", "mobilenet_v1"),
}
"""The networks that every data set was to be run with."""
LEAVE_ONE_OUT = ("digits", "pacs")
"""The data sets whose models are trained on all domains but one, also run for robustness and training."""
LABELS = {
    "source": "no adaptation",
    "norm": "norm",
    "tent": "TENT",
    "eta": "ETA",
    "t3a": "T3A",
    "sotta": "SoTTA",
    "dec": "DEC (paper)",
    "dec-released": "DEC (notebook)",
    "poise": "poise",
}
RIVALS = ("tent", "eta", "t3a", "sotta")
WAYS = {
    "none": "raw",
    "fixed": "fixed",
    "mean": "mean of tau",
    "median": "median of tau",
    "rehearsed": "rehearsed",
}
"""The temperings, in words."""
MINIMISERS = ("tent", "eta", "sotta")
"""The rivals that lower the entropy of their answers by gradient steps."""
SOURCE, NORM, POISE = Variant("source", "none"), Variant("norm", "none"), Variant("poise", "rehearsed")
DEC = Variant("dec", "mean")
"""DEC as the paper has it."""
STREAM = ["data", "backbone", "target", "tier", "seed"]


class PaperNumber(NamedTuple):
    """A number that the paper prints, with its decimals, and whether it is doubtful."""

    value: float
    decimals: int
    doubtful: bool

    def __str__(self) -> str:
        return told(self.value, self.decimals) + (DOUBTFUL if self.doubtful else "")

    def reached_by(self, ours: float) -> bool:
        """Whether a number of ours is at least as high, as far as the paper's is told."""
        return round(ours, self.decimals) >= round(self.value, self.decimals)


class Measured(NamedTuple):
    """Everything that the page is made of."""

    cells: pd.DataFrame
    streams: pd.DataFrame
    robust: pd.DataFrame
    training: pd.DataFrame


class Place(NamedTuple):
    """A data set with a network, at one tier or, where `tier` is None, over all that were run."""

    data: str
    backbone: str
    tier: int | None = None

    def __str__(self) -> str:
        tier = f", tier {self.tier}" if self.tier else ""
        return f"{NAMES[self.data]}, {NETWORKS[self.backbone]}{tier}"


def read(folder: Path = FOLDER) -> Measured:
    """The CSV files of a folder."""
    cells, streams, robust, training = (
        pd.read_csv(folder / f"{name}.csv") for name in ("cells", "streams", "robust", "training")
    )
    return Measured(tidy(cells), streams.fillna({"tier": 0}), robust, training)


def tidy(cells: pd.DataFrame) -> pd.DataFrame:
    """A row for each run, protocol and tempering, from columns as "online/none/accuracy"."""
    about = [name for name in cells.columns if "/" not in name]
    wide = cells.assign(tier=cells["tier"].fillna(0).astype(int)).set_index(about)
    wide.columns = pd.MultiIndex.from_tuples(
        [tuple(name.split("/")) for name in wide.columns], names=["protocol", "tempering", None]
    )
    rows = wide.stack(["protocol", "tempering"]).dropna(how="all").reset_index()
    tier = rows["tier"].astype(str).radd("/").where(rows["tier"] > 0, "")
    return rows.assign(name=rows["label"], method=rows["label"], shift=rows["target"] + tier)


def networks(cells: pd.DataFrame) -> list[Place]:
    """The data sets and networks that there are results of, in the page's order."""
    there = set(zip(cells["data"], cells["backbone"], strict=True))
    return [Place(data, backbone) for data in NAMES for backbone in NETWORKS if (data, backbone) in there]


def places(cells: pd.DataFrame) -> list[Place]:
    """The data sets and networks, each tier apart."""
    return [
        Place(place.data, place.backbone, int(tier) or None)
        for place in networks(cells)
        for tier in sorted(at(cells, place)["tier"].unique())
    ]


def at(cells: pd.DataFrame, place: Place, protocol: str = "online") -> pd.DataFrame:
    """The rows of a place."""
    rows = (cells["data"] == place.data) & (cells["backbone"] == place.backbone)
    if place.tier is not None:
        rows &= cells["tier"] == place.tier
    return cells[rows & (cells["protocol"] == protocol)]


def of(rows: pd.DataFrame, variant: Variant) -> pd.DataFrame:
    """The rows of a method with a tempering."""
    return rows[(rows["name"] == variant.name) & (rows["tempering"] == variant.tempering)]


def common(rows: pd.DataFrame, *variants: Variant) -> pd.DataFrame:
    """The rows of the shifts and seeds that some methods share; none where a shift would be left out."""
    pairs = pd.MultiIndex.from_frame(rows[["shift", "seed"]])
    there = np.ones(len(rows), dtype=bool)
    for variant in variants:
        theirs = of(rows, variant)[["shift", "seed"]]
        there &= pairs.isin(pd.MultiIndex.from_frame(theirs))
    kept = rows[there]
    return kept if kept["shift"].nunique() == rows["shift"].nunique() else rows.iloc[:0]


def mean(rows: pd.DataFrame, variant: Variant, metric: str) -> float | None:
    """A metric's mean over the shifts of some rows, of each the mean over its seeds.

    None where a shift of these rows is missing: a mean over other shifts cannot be compared. Means of two
    methods are compared over the rows that are `common` to both.
    """
    by_shift = of(rows, variant).groupby("shift")[metric].mean().dropna()
    return float(by_shift.mean()) if 0 < len(by_shift) == rows["shift"].nunique() else None


def means(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The `mean` of every method and tempering among some rows; NaN where a shift is missing."""
    by_shift = rows.groupby(["name", "tempering", "shift"])[list(metrics)].mean()
    groups = by_shift.groupby(["name", "tempering"])
    return groups.mean().where(groups.count() == rows["shift"].nunique())


def spread(rows: pd.DataFrame, variant: Variant, metric: str) -> float | None:
    """The standard deviation over the seeds of a metric's mean over the shifts.

    Seeds that lack a shift do not count; None for fewer than two.
    """
    by_seed = of(rows, variant).dropna(subset=[metric]).groupby("seed")
    whole = by_seed[metric].mean()[by_seed["shift"].nunique() == rows["shift"].nunique()]
    return float(whole.std()) if len(whole) > 1 else None


def raw(label: str) -> Variant:
    """A method whose answers are not divided."""
    return Variant(label, "none")


def best_raw_rival(rows: pd.DataFrame) -> Variant | None:
    """The rival whose raw answers have the least ECE, of those with all runs that poise has."""
    runs, means = len(of(rows, POISE)), {}
    for rival in map(raw, RIVALS):
        both = common(rows, POISE, rival)
        value = mean(both, rival, "ece")
        if value is not None and len(of(both, POISE)) == runs:
            means[rival] = value
    return min(means, key=means.__getitem__, default=None)


def change(rows: pd.DataFrame, variant: Variant, base: Variant, metric: str) -> float | None:
    """The mean of a method less that of another, over the rows that both have."""
    both = common(rows, variant, base)
    ours, theirs = mean(both, variant, metric), mean(both, base, metric)
    return None if ours is None or theirs is None else ours - theirs


def printed(place: Place, label: str, metric: str, tiers: Sequence[int] = ()) -> PaperNumber | None:
    """The number that the paper prints for a method; over several tiers their mean, if all are printed."""
    columns = [f"Tier {tier}" for tier in tiers or filter(None, (place.tier,))] or ["average"]
    rows = [row for row, method in ROWS.items() if method == label]
    for table in printed_tables():
        if (table.data, table.backbone) == place[:2]:
            found = [table.cells.get((metric, row, column)) for row in rows for column in columns]
            known = [each for each in found if each is not None]
            if known and len(known) == len(columns):
                value = sum(each.value for each in known) / len(known)
                decimals = table.decimals if len(known) == 1 else 3
                return PaperNumber(value, decimals, any(each.doubt for each in known))
    return None


def against_each(
    rows: pd.DataFrame,
    metric: str,
    focal: Variant,
    temperings: Sequence[str],
    rivals: Sequence[str] = RIVALS,
) -> list[Comparison]:
    """A method against every rival with every tempering, over the shifts and seeds that both have.

    Comparisons that lack a shift of these rows are left out.
    """
    made = [
        against_best_other(rows.dropna(subset=[metric]), metric, focal, tempering, [rival])
        for rival in rivals
        for tempering in temperings
    ]
    return [each for each in made if each is not None and each.test.pairs == rows["shift"].nunique()]


def hardest(comparisons: Sequence[Comparison]) -> Comparison | None:
    """The comparison that is the worst for the method: by a ratio where lower is better, or a difference."""

    def loss(comparison: Comparison) -> float:
        if BETTER[comparison.metric] < 0:
            return comparison.focal_mean / comparison.rival_mean
        return comparison.rival_mean - comparison.focal_mean

    return max(comparisons, key=loss, default=None)


def estimated(cells: pd.DataFrame) -> pd.DataFrame:
    """A row for each stream: estimate (`value`, `low`, `high`, `covered`), accuracy, and the `error`."""
    online = cells[cells["protocol"] == "online"]
    guesses = of(online, Variant(POISE.name, "estimate"))[[*STREAM, "value", "low", "high", "covered"]]
    both = guesses.merge(of(online, POISE)[[*STREAM, "accuracy"]], on=STREAM)
    return both.assign(error=both["value"] - both["accuracy"])
