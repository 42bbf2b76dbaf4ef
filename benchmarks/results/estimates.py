"""The accuracy that poise estimates without labels, against the true one."""

import pandas as pd

from benchmarks.results.measured import POISE, networks, of
from benchmarks.results.wording import signed, table, told
from equipoise.research.report.results import Variant

STREAM = ["data", "backbone", "target", "tier", "seed"]


def estimated(cells: pd.DataFrame) -> pd.DataFrame:
    """A row for each stream: estimate (`value`, `low`, `high`, `covered`), accuracy, and the `error`."""
    online = cells[cells["protocol"] == "online"]
    guesses = of(online, Variant(POISE.name, "estimate"))[[*STREAM, "value", "low", "high", "covered"]]
    both = guesses.merge(of(online, POISE)[[*STREAM, "accuracy"]], on=STREAM)
    return both.assign(error=both["value"] - both["accuracy"])


def estimate_table(cells: pd.DataFrame) -> str:
    """The errors of the estimates, for each data set and network."""
    streams, body = estimated(cells), []
    for place in networks(cells):
        rows = streams[(streams["data"] == place.data) & (streams["backbone"] == place.backbone)]
        if rows.empty:
            continue
        numbers = [rows["error"].abs().mean(), rows["error"].mean(), rows["error"].abs().max()]
        told_numbers = [told(numbers[0]), signed(numbers[1]), told(numbers[2])]
        body.append([str(place), str(len(rows)), *told_numbers, f"{100 * rows['covered'].mean():.0f} %"])
    head = ["", "streams", "off by, on average", "too high by, on average", "off by at most"]
    return table([*head, "interval right"], body)


def estimate_verdict(cells: pd.DataFrame) -> str:
    """One sentence about all streams."""
    streams = estimated(cells)
    if streams.empty:
        return "No estimates were recorded."
    by_place = streams.assign(off=streams["error"].abs(), width=streams["high"] - streams["low"])
    means = by_place.groupby(["data", "backbone"])[["off", "width", "covered"]].mean()
    off, width = (f"{told(means[name].min())} to {told(means[name].max())}" for name in ("off", "width"))
    least, most = (f"{100 * value:.0f}" for value in (means["covered"].min(), means["covered"].max()))
    return (
        f"By data set and network, over {len(streams)} streams, the estimate is off by {off} on average, "
        f"and the interval, {width} wide, held the accuracy of the last 500 images at {least} to {most} % "
        "of the batches."
    )
