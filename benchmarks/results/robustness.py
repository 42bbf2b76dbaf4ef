"""Poise under streams that break other methods, from robust.csv."""

import pandas as pd
from measured import Place
from wording import plain, signed, table, told

LOST = 0.05
"""A stream collapsed where accuracy, on it or afterwards, is so much below that of no adaptation."""
KEY = ["data", "backbone", "target", "stream"]


def paired(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """A row for each target and stream that a method met, beside no adaptation on the same stream.

    `gain` and `gain_after` are the differences of accuracy from no adaptation, on the stream and on a
    shuffled one afterwards.
    """
    source = robust[robust["method"] == "source"][[*KEY, "accuracy", "after"]]
    both = robust[robust["method"] == method].merge(source, on=KEY, suffixes=("", "_source"))
    gains = {
        "gain": both["accuracy"] - both["accuracy_source"],
        "gain_after": both["after"] - both["after_source"],
    }
    return both.assign(**gains)


def collapsed(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """The rows of `paired` that collapsed."""
    both = paired(robust, method)
    return both[(both["gain"] < -LOST) | (both["gain_after"] < -LOST)]


def robustness_tables(robust: pd.DataFrame) -> str:
    """A table for each data set and network: the means over the targets, and the worst target."""
    parts = []
    for (data, backbone), rows in paired(robust).groupby(["data", "backbone"], sort=False):
        body = []
        for stream, group in rows.groupby("stream", sort=False):
            names = ("accuracy_source", "accuracy", "estimate", "ece", "after")
            source, ours, estimate, ece, after = (told(float(group[name].mean())) for name in names)
            worst = group.sort_values("gain").iloc[0]
            least = f"{signed(worst['gain'])} ({plain(worst['target'])})"
            body.append([str(stream), source, f"{ours} ({estimate})", ece, after, least])
        head = ["stream", "no adaptation", "`poise` (estimate)", "ECE", "afterwards", "worst target"]
        parts.append(f"**{Place(str(data), str(backbone))}**\n\n{table(head, body)}")
    return "\n\n".join(parts)


def verdict(robust: pd.DataFrame) -> str:
    """Whether any stream collapsed, in a sentence."""
    both, lost = paired(robust), collapsed(robust)
    if lost.empty:
        return (
            f"**No stream collapsed**: on none of {len(both)} was `poise`, on the stream or afterwards, more "
            f"than {told(LOST, 2)} less accurate than no adaptation (at worst {signed(both['gain'].min())} "
            f"on the stream, {signed(both['gain_after'].min())} afterwards)."
        )
    named = [
        f"{Place(row['data'], row['backbone'])} → {plain(row['target'])}, {row['stream']} "
        f"({signed(row['gain'])}, afterwards {signed(row['gain_after'])})"
        for _, row in lost.iterrows()
    ]
    return (
        f"**{len(lost)} of {len(both)} streams collapsed**: `poise` was more than {told(LOST, 2)} less "
        f"accurate than no adaptation on the stream or afterwards. They are {'; '.join(named)}."
    )


def tent_verdict(robust: pd.DataFrame) -> str:
    """The number of streams on which TENT collapsed, in a sentence; empty where it was not run."""
    met = len(paired(robust, "tent"))
    return f"TENT collapsed on {len(collapsed(robust, 'tent'))} of the {met} that it met. " if met else ""


def images(robust: pd.DataFrame) -> str:
    """The number of images of a stream, or the least and the most."""
    low, high = robust["images"].min(), robust["images"].max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
