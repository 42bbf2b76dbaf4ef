"""Sentences and small tables of docs/streams.md that follow from the committed comparison."""

import math
from statistics import fmean

import pandas as pd

from benchmarks.results.wording import plain, signed, table, told
from benchmarks.streams.stream_cells import (
    RAW,
    REHEARSED,
    SOURCE,
    Place,
    Setting,
    at,
    by_mean,
    by_pass,
    gains,
    matrix,
    mean_of,
    of_place,
    places,
    settings,
    whole,
    with_rehearsal,
)

HARM = -0.01
"""A mean loss of more accuracy counts as harm."""
AT_EACH_END = 2
"""Passes of a recurring stream that are compared: where two of them are a whole number of batches and one is
not, their accuracies differ in turns."""


def extent_table(cells: pd.DataFrame) -> str:
    """The models, domains and images of each place and stream, as they were run."""
    body = []
    for setting in settings(cells):
        rows = at(cells, setting)
        first = rows.iloc[0]
        body.append(
            [
                str(setting.place),
                setting.stream,
                str(len(rows[["target", "seed"]].drop_duplicates())),
                str(len(first["accuracy_by_domain"].split())),
                str(first["domain_images"]),
                f"{round(rows['images'].mean()):,}",
                str(first["batch_size"]),
                str(rows["name"].nunique()),
            ]
        )
    head = ["", "stream", "models", "domains", "images of each, at most", "images a stream", "batch"]
    return table([*head, "methods"], body)


SCORES = (("ece", RAW), ("ece", REHEARSED), ("nll", RAW), ("nll", REHEARSED), ("off", REHEARSED))
"""The metrics and temperings of a summary."""


def summary_table(cells: pd.DataFrame, place: Place) -> str:
    """For each method: the gain in each kind of stream, and calibration before and after a rehearsal."""
    gain = of_place(gains(cells), place)
    both = with_rehearsal(cells)
    matched = both if len(of_place(matrix(both, "ece", RAW), place)) else cells
    scores = [of_place(matrix(matched, metric, kind), place) for metric, kind in SCORES]
    streams = [setting.stream for setting in gain]
    over_seeds = seed_spread(cells, place)
    some = fewer_seeds(cells, place)
    several = len(streams) > 1
    body = [
        [
            f"`{name}`",
            *([gained(mean_of(gain, name)) + over_seeds.get(name, "")] if several else []),
            *(gained(mean_of(gain, name, stream)) for stream in streams),
            *(told(mean_of(each, name)) for each in scores),
        ]
        for name in by_mean(gain)
    ]
    head = ["", *(["all streams"] if several else []), *streams]
    columns = ("ECE raw", "rehearsed", "NLL raw", "rehearsed", "estimate off by")
    return table([*head, *(f"{column}{some}" for column in columns)], body)


def seed_spread(cells: pd.DataFrame, place: Place) -> dict[str, str]:
    """The standard deviation over seeds of each method's mean gain; nothing where there is one seed."""
    here = (cells["data"] == place.data) & (cells["backbone"] == place.backbone)
    rows = cells[here & (cells["tier"] == place.tier) & (cells["tempering"] == RAW)]
    wide = rows.pivot_table(index=["seed", "target", "stream"], columns="name", values="accuracy")
    by_seed = wide.sub(wide[SOURCE], axis=0).groupby("seed").mean()
    return {str(name): f" ± {told(by_seed[name].std())}" for name in by_seed} if len(by_seed) > 1 else {}


def fewer_seeds(cells: pd.DataFrame, place: Place) -> str:
    """A remark for columns of rehearsed runs, where only some of the seeds are rehearsed."""
    rows = cells[(cells["data"] == place.data) & (cells["backbone"] == place.backbone)]
    every, some = (rows.loc[rows["tempering"] == kind, "seed"].unique() for kind in (RAW, REHEARSED))
    return "" if len(some) in (0, len(every)) else f", seed {', '.join(map(str, some))}"


def gained(value: float) -> str:
    """A gain with its sign; a dash where there is none."""
    return "-" if math.isnan(value) else signed(value)


def best_table(cells: pd.DataFrame) -> str:
    """For each setting the most accurate method and the one of lowest NLL, `poise` and no adaptation."""
    honest, body = matrix(cells, "nll", REHEARSED), []
    for setting, accuracy in matrix(cells, "accuracy", RAW).items():
        best, likely = max(accuracy, key=accuracy.__getitem__), honest[setting]
        lowest = min(likely, key=likely.__getitem__, default=None)
        body.append(
            [
                setting.place.short,
                setting.stream,
                f"`{best}` {told(accuracy[best])}",
                told(accuracy["poise"]),
                told(accuracy[SOURCE]),
                f"`{lowest}` {told(likely[lowest])}" if lowest else "-",
                told(likely.get("poise")),
            ]
        )
    head = ["", "stream", "most accurate", "`poise`", "no adaptation", "lowest NLL, rehearsed", "`poise`"]
    return table(head, body)


def over_passes(cells: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The accuracy of each method in the last passes of the recurring stream less the first, by place."""
    found = {}
    for place in places(cells):
        if len(at(cells, Setting(place, "recurring"))):
            found[place.short] = {
                name: fmean(values[-AT_EACH_END:]) - fmean(values[:AT_EACH_END])
                for name, values in by_pass(cells, place).items()
            }
    return found


def source_by_target(cells: pd.DataFrame) -> str:
    """The accuracy of the source models by target, in continual streams, of places with several targets."""
    parts = []
    for place in places(cells):
        rows = whole(at(cells, Setting(place, "continual")), RAW)
        rows = rows[rows["name"] == SOURCE]
        means = {target: own["accuracy"].mean() for target, own in rows.groupby("target")}
        if len(means) > 1:
            listed = ", ".join(f"{plain(target)} {told(value)}" for target, value in means.items())
            parts.append(f"{place.short}: {listed}")
    return "; ".join(parts)
