"""Sentences and small tables of docs/streams.md that follow from the committed comparison."""

import pandas as pd
from stream_cells import RAW, REHEARSED, SOURCE, STREAMS, Setting, at, gains, matrix, places, settings
from stream_pictures import by_pass
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
    gain, means = gains(cells), {}
    for tempering in (RAW, REHEARSED):
        means[tempering] = {metric: matrix(cells, metric, tempering) for metric in ("ece", "nll", "off")}
    complete = [name for name in matrix(cells, "accuracy", RAW).index if _complete(gain, str(name))]
    order = sorted(complete, key=lambda name: -(gain.loc[name].mean() if name in gain.index else 0.0))
    body = []
    for name in order:
        own = gain.loc[name] if name in gain.index else gain.iloc[0] * 0
        by_stream = [signed(own.xs(stream, level="stream").mean()) for stream in STREAMS]
        harmed = sum(own < HARM)
        scores = [
            told(_mean(means[kind][metric], str(name)))
            for metric, kind in (
                ("ece", RAW),
                ("ece", REHEARSED),
                ("nll", RAW),
                ("nll", REHEARSED),
                ("off", REHEARSED),
            )
        ]
        body.append([f"`{name}`", signed(own.mean()), *by_stream, str(harmed), *scores])
    head = ["", "all", *STREAMS, f"harmed, of {len(gain.columns)}", "ECE raw", "ECE rehearsed"]
    return table([*head, "NLL raw", "NLL rehearsed", "estimate off by"], body)


def _complete(gain: pd.DataFrame, name: str) -> bool:
    return name == SOURCE or not gain.loc[name].isna().any()


def _mean(values: pd.DataFrame, name: str) -> float:
    """The mean over all settings; NaN where one is missing."""
    return float(values.loc[name].mean(skipna=False)) if name in values.index else float("nan")


def best_table(cells: pd.DataFrame) -> str:
    """For each setting the most accurate method, `poise` and no adaptation."""
    accuracy = matrix(cells, "accuracy", RAW)
    honest = matrix(cells, "nll", REHEARSED)
    body = []
    for column in accuracy.columns:
        setting, best, likely = Setting(*column), accuracy[column].idxmax(), honest[column].idxmin()
        body.append(
            [
                setting.place.short,
                setting.stream,
                f"`{best}` {told(accuracy[column][best])}",
                told(accuracy[column]["poise"]),
                told(accuracy[column][SOURCE]),
                f"`{likely}` {told(honest[column][likely])}",
                told(honest[column]["poise"]),
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
            lost = passes.iloc[:, 0] - passes.iloc[:, -1]
            found[place.short] = [str(name) for name in lost.index[lost > COLLAPSE]]
    return found
