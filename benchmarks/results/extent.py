"""The runs that the page rests on, and those that were not made."""

import pandas as pd

from benchmarks.results.claims import FIXED
from benchmarks.results.measured import (
    LABELS,
    LEAVE_ONE_OUT,
    NAMES,
    NETWORKS_OF,
    Measured,
    Place,
    at,
    networks,
    of,
)
from benchmarks.results.robust_streams import STREAMS
from benchmarks.results.robustness import is_complete, paired
from benchmarks.results.wording import table
from equipoise.research.report.paper import Experiment, experiments
from equipoise.research.report.results import Variant
from equipoise.research.report.table import listed

WHOLE_STREAMS = {"tiny-imagenet-c": 5000}
"""The images of a stream, where streams may have been cut short."""


def run_table(cells: pd.DataFrame) -> str:
    """Seeds, streams and images for each data set and network."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        tiers = [str(tier) for tier in sorted(rows["tier"].unique()) if tier]
        streams = str(rows["target"].nunique()) + (f", each at tiers {', '.join(tiers)}" if tiers else "")
        low, high = rows["images"].min(), rows["images"].max()
        images = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        seeds = ", ".join(str(seed) for seed in sorted(rows["seed"].unique()))
        body.append([str(place), seeds, streams, images, _side(place, rows)])
    return table(["", "seeds", "streams", "images a stream", "pixels"], body)


def _side(place: Place, rows: pd.DataFrame) -> str:
    own, papers = experiments()[place.data].own_size, experiments()[place.data].input_size
    size = int(rows["input_size"].fillna(own).iloc[0])
    return f"{size}" if size == papers else f"{size} (the paper: {papers})"


def gaps(measured: Measured) -> str:
    """A list of the runs that are missing."""
    cells = measured.cells
    lines = [
        f"- {NAMES[data]}: not run at all." if data in NAMES else "- Office-Home: its data could not be had."
        for data in experiments()
        if not _has(cells, data)
    ]
    for place in networks(cells):
        rows = at(cells, place)
        missing = [_lacking(experiments()[place.data], rows), _cut(place, rows), *_missing_methods(rows)]
        if not len(at(cells, place, "after-pass")):
            missing.append("no second pass after adapting")
        if told := "; ".join(filter(None, missing)):
            lines.append(f"- {place}: {told}.")
    lines += [f"- {line}." for line in _other_gaps(measured)]
    return "\n".join(lines) if lines else "- Nothing of the paper's experiments."


def _other_gaps(measured: Measured) -> list[str]:
    """Missing parts of robustness, of the ways to train and of the fixed temperature."""
    lines = []
    for place in (Place(data, network) for data in LEAVE_ONE_OUT for network in NETWORKS_OF[data]):
        robust, tried = (_of_place(frame, place) for frame in (measured.robust, measured.training))
        met = paired(robust)
        if not is_complete(met):
            whole = len(STREAMS) * experiments()[place.data].domains
            lines.append(f"Robustness on {place}: {len(met) or 'none'} of {whole} streams")
        if tried.empty:
            lines.append(f"Ways to train, {place}: none but the recipe's")
    left = [str(place) for place in networks(measured.cells) if of(at(measured.cells, place), FIXED).empty]
    return lines + ([f"The fixed temperature: not run on {listed(left)}"] if left else [])


def _of_place(frame: pd.DataFrame, place: Place) -> pd.DataFrame:
    return frame[(frame["data"] == place.data) & (frame["backbone"] == place.backbone)]


def _has(cells: pd.DataFrame, data: str) -> bool:
    return bool((cells["data"] == data).any())


def _lacking(experiment: Experiment, rows: pd.DataFrame) -> str:
    tiers = {int(tier) for tier in rows["tier"].unique() if tier}
    told = experiment.lacking(rows["target"].nunique(), len(tiers), set(rows["seed"]))
    return f"only {told}" if told else ""


def _cut(place: Place, rows: pd.DataFrame) -> str:
    images, whole = rows["images"].max(), WHOLE_STREAMS.get(place.data, 0)
    return f"{images:,} of {whole:,} images a stream" if images < whole else ""


def _missing_methods(rows: pd.DataFrame) -> list[str]:
    """Methods that lack streams, raw or, of those that were run, rehearsed."""
    runs = rows[["shift", "seed"]].drop_duplicates()
    told, labels = [], list(LABELS)
    for tempering, words in (("none", "not run"), ("rehearsed", "not rehearsed")):
        met = {label: len(of(rows, Variant(label, tempering))) for label in labels}
        labels = [label for label in labels if met[label]]
        none = [LABELS[label] for label, number in met.items() if not number]
        some = [
            f"{LABELS[label]} ({met[label]} of {len(runs)} streams)"
            for label in met
            if 0 < met[label] < len(runs)
        ]
        told += [f"{words}: {listed(none)}"] if none else []
        told += [f"{words} on all streams: {listed(some)}"] if some else []
    return told


def machines(cells: pd.DataFrame) -> str:
    """The devices and versions of torch that made the results."""
    pairs = cells[["device", "torch"]].drop_duplicates().dropna()
    return listed(f"{device} (torch {version})" for device, version in pairs.itertuples(index=False))


def rehearsals(cells: pd.DataFrame) -> str:
    """The sizes of the rehearsals."""
    sizes = cells[["rehearsal_images", "rehearsal_shifts"]].dropna(how="all").drop_duplicates()
    told = [
        f"at most {int(images):,} images and {'all' if pd.isna(shifts) else int(shifts)} made-up shifts"
        for images, shifts in sizes.itertuples(index=False)
    ]
    return listed(told) if told else "of unknown size"
