"""Poise under streams that break other methods, from robust.csv."""

import numpy as np
import pandas as pd
from measured import Place
from robust_streams import STREAMS
from wording import plain, signed, table, told

from equipoise.report.paper import experiments

LOST = 0.05
"""A stream collapsed where accuracy, on it or afterwards, is so much below its base."""
PLAIN = "batches of 50"
"""The stream with neither an order, nor passes, nor batches that a method was not made for."""
CHANGED = [name for name, stream in STREAMS.items() if stream.changes]
"""Streams with other images than the plain one."""
TARGET = ["data", "backbone", "target"]


def paired(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """A row for each target and stream that a method met, beside no adaptation on the same stream.

    `change` and `change_after` are the differences
    from the base, on the stream and on a shuffled one afterwards: the base is the higher of no adaptation and
    the method itself on the plain stream. A source model below chance would hide every collapse. Streams with
    changed images have no adaptation alone for a base.
    """
    scores = ["accuracy", "after"]
    mine = robust[robust["method"] == method]
    source = robust[robust["method"] == "source"][[*TARGET, "stream", *scores]]
    own = mine[mine["stream"] == PLAIN][[*TARGET, *scores]]
    both = mine.merge(source, on=[*TARGET, "stream"], suffixes=("", "_source"))
    both = both.merge(own, on=TARGET, how="left", suffixes=("", "_plain"))
    same = ~both["stream"].isin(CHANGED)
    bases = {
        name: both[f"{name}_source"].combine(both[f"{name}_plain"].where(same), np.fmax) for name in scores
    }
    return both.assign(
        change=both["accuracy"] - bases["accuracy"],
        change_after=both["after"] - bases["after"],
    )


def collapsed(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """The rows of `paired` that collapsed."""
    both = paired(robust, method)
    return both[(both["change"] < -LOST) | (both["change_after"] < -LOST)]


def is_complete(both: pd.DataFrame) -> bool:
    """Whether the rows of one data set and network have every stream of every target."""
    if both.empty:
        return False
    streams = both[both["stream"].isin(list(STREAMS))].groupby("target")["stream"].nunique()
    targets = experiments()[str(both["data"].iloc[0])].domains
    return bool(len(streams) == targets and (streams == len(STREAMS)).all())


def robustness_tables(robust: pd.DataFrame) -> str:
    """A table for each data set and network: the means over the targets, and the worst target."""
    parts = []
    for (data, backbone), rows in paired(robust).groupby(["data", "backbone"], sort=False):
        body = []
        for stream, group in rows.groupby("stream", sort=False):
            names = ("accuracy_source", "accuracy", "estimate", "ece", "after")
            source, ours, estimate, ece, after = (told(float(group[name].mean())) for name in names)
            worst = group.sort_values("change").iloc[0]
            least = f"{signed(worst['change'])} ({plain(worst['target'])})"
            body.append([str(stream), source, f"{ours} ({estimate})", ece, after, least])
        head = ["stream", "no adaptation", "`poise` (estimate)", "ECE", "afterwards", "worst target"]
        parts.append(f"**{Place(str(data), str(backbone))}**\n\n{table(head, body)}")
    return "\n\n".join(parts)


def verdict(robust: pd.DataFrame) -> str:
    """Whether any stream collapsed, in a sentence."""
    both, lost = paired(robust), collapsed(robust)
    if both.empty:
        return "Not run."
    rule = (
        f"more than {told(LOST, 2)} less accurate, on the stream or on a shuffled one afterwards, than no "
        f"adaptation or than `poise` itself in {PLAIN}"
    )
    if lost.empty:
        return (
            f"**No stream of {len(both)} collapsed**, that is, on none was `poise` {rule} (at worst "
            f"{signed(both['change'].min())} on the stream, {signed(both['change_after'].min())} afterwards)."
        )
    found = [
        f"{Place(row['data'], row['backbone'])} → {plain(row['target'])}, {row['stream']} "
        f"({told(row['accuracy'])}, {signed(row['change'])}; afterwards {signed(row['change_after'])})"
        for _, row in lost.iterrows()
    ]
    return (
        f"**{len(lost)} of {len(both)} streams collapsed**, that is, `poise` was {rule}: {'; '.join(found)}."
    )


def tent_verdict(robust: pd.DataFrame) -> str:
    """The number of streams on which TENT collapsed, in a sentence; empty where it was not run."""
    met = len(paired(robust, "tent"))
    return f"TENT collapsed on {len(collapsed(robust, 'tent'))} of the {met} that it met. " if met else ""


def images(robust: pd.DataFrame) -> str:
    """The number of images of a stream, or the least and the most; empty where no stream was run."""
    if robust.empty:
        return ""
    low, high = robust["images"].min(), robust["images"].max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
