"""Sentences and small tables of docs/streams.md that follow from the committed comparison."""

import pandas as pd
from stream_cells import (
    RAW,
    REHEARSED,
    SOURCE,
    STREAMS,
    Setting,
    at,
    by_mean,
    by_pass,
    gains,
    matrix,
    mean_of,
    places,
    settings,
)
from wording import signed, table, told

HARM = -0.01
"""A mean loss of accuracy from here on counts as harm."""
COLLAPSE = 0.1
"""A loss of accuracy from the first pass to the last from here on."""


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


def summary_table(cells: pd.DataFrame) -> str:
    """For each method: the mean gain in each kind of stream, harm, and calibration before and after."""
    gain = gains(cells)
    scores = [
        matrix(cells, metric, kind)
        for metric, kind in (
            ("ece", RAW),
            ("ece", REHEARSED),
            ("nll", RAW),
            ("nll", REHEARSED),
            ("off", REHEARSED),
        )
    ]
    body = [
        [
            f"`{name}`",
            signed(mean_of(gain, name)),
            *(signed(mean_of(gain, name, stream)) for stream in STREAMS),
            str(sum(by_name[name] < HARM for by_name in gain.values())),
            *(told(mean_of(each, name)) for each in scores),
        ]
        for name in by_mean(gain)
    ]
    head = ["", "all", *STREAMS, f"harmed, of {len(gain)}", "ECE raw", "ECE rehearsed"]
    return table([*head, "NLL raw", "NLL rehearsed", "estimate off by"], body)


def best_table(cells: pd.DataFrame) -> str:
    """For each setting the most accurate method and the one of lowest NLL, `poise` and no adaptation."""
    honest, body = matrix(cells, "nll", REHEARSED), []
    for setting, accuracy in matrix(cells, "accuracy", RAW).items():
        best, likely = max(accuracy, key=accuracy.__getitem__), honest[setting]
        lowest = min(likely, key=likely.__getitem__)
        body.append(
            [
                setting.place.short,
                setting.stream,
                f"`{best}` {told(accuracy[best])}",
                told(accuracy["poise"]),
                told(accuracy[SOURCE]),
                f"`{lowest}` {told(likely[lowest])}",
                told(likely["poise"]),
            ]
        )
    head = ["", "stream", "most accurate", "`poise`", "no adaptation", "lowest NLL, rehearsed", "`poise`"]
    return table(head, body)


def collapsed(cells: pd.DataFrame) -> dict[str, list[str]]:
    """The methods that lose accuracy from the first to the last pass of the recurring stream, by place."""
    found = {}
    for place in places(cells):
        if len(at(cells, Setting(place, "recurring"))):
            passes = by_pass(cells, place)
            found[place.short] = [
                name for name, (*_, last) in passes.items() if passes[name][0] - last > COLLAPSE
            ]
    return found
