"""Poise under streams that break other methods, from robust.csv."""

import numpy as np
import pandas as pd

from benchmarks.results.measured import Place
from benchmarks.results.robust_streams import STREAMS
from benchmarks.results.wording import plain, signed, table, told
from equipoise.research.report.paper import experiments

LOST = 0.05
"""A stream collapsed where accuracy, on it or afterwards, is so much below its base."""
ONE, PLAIN = "batches of 1", "batches of 50"
"""The shuffled streams that others are compared with: those of batches of 1 have fewer images."""
TARGET = ["data", "backbone", "target"]


def base_of(name: str) -> str:
    """The shuffled stream with the same images as a stream; empty where there is none but itself."""
    stream = STREAMS.get(name)
    if stream is None or stream.changes or name in (ONE, PLAIN):
        return ""
    return ONE if stream.size == 1 else PLAIN


def paired(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """A row for each target and stream that a method met, beside no adaptation on the same images.

    `change` and `change_after` are the differences from the base, on the stream and on a shuffled one
    afterwards: the base is the higher of no adaptation and the method itself on the shuffled stream of the
    same images (`accuracy_base`), where there is one. A source model below chance would hide every collapse.
    """
    scores = ["accuracy", "after"]
    mine = robust[robust["method"] == method]
    source = robust[robust["method"] == "source"][[*TARGET, "stream", *scores, "ece"]]
    own = mine[[*TARGET, "stream", *scores]].rename(columns={"stream": "base"})
    both = mine.assign(base=mine["stream"].map(base_of))
    both = both.merge(source, on=[*TARGET, "stream"], suffixes=("", "_source"))
    both = both.merge(own, on=[*TARGET, "base"], how="left", suffixes=("", "_base"))
    best = {name: both[f"{name}_source"].combine(both[f"{name}_base"], np.fmax) for name in scores}
    return both.assign(change=both["accuracy"] - best["accuracy"], change_after=both["after"] - best["after"])


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
            names = ("accuracy_source", "accuracy", "estimate", "ece_source", "ece", "after")
            source, ours, estimate, *rest = (told(float(group[name].mean())) for name in names)
            worst = group.sort_values("change").iloc[0]
            least = f"{signed(worst['change'])} ({plain(worst['target'])})"
            body.append([str(stream), source, f"{ours} ({estimate})", *rest, least])
        head = ["stream", "no adaptation", "`poise` (estimate)", "its ECE", "ECE of `poise`"]
        parts.append(
            f"**{Place(str(data), str(backbone))}**\n\n{table([*head, 'afterwards', 'worst target'], body)}"
        )
    return "\n\n".join(parts)


def verdict(robust: pd.DataFrame) -> str:
    """The number of streams that collapsed, in a sentence."""
    both, lost = paired(robust), collapsed(robust)
    if both.empty:
        return "Not run."
    if lost.empty:
        return (
            f"**No stream of {len(both)} collapsed** (at worst {signed(both['change'].min())} on the stream, "
            f"{signed(both['change_after'].min())} afterwards)."
        )
    on_it, afterwards = (lost[name] < lost[f"{name}_source"] - LOST for name in ("accuracy", "after"))
    return (
        f"**{len(lost)} of {len(both)} streams collapsed**, {(on_it | afterwards).sum()} of them to more "
        f"than {told(LOST, 2)} below no adaptation."
    )


def collapse_table(robust: pd.DataFrame) -> str:
    """A row for each stream that collapsed; empty without one."""
    lost = collapsed(robust)
    body = [
        [
            f"{Place(row['data'], row['backbone'])} → {plain(row['target'])}, {row['stream']}",
            *(told(row[name]) for name in ("accuracy", "accuracy_source", "accuracy_base")),
            *(told(row[name]) for name in ("after", "after_source", "after_base")),
            f"{100 * row['answered_by_source']:.0f} %",
        ]
        for _, row in lost.iterrows()
    ]
    head = ["collapsed", "`poise`", "no adaptation", "`poise`, shuffled", "afterwards"]
    head += ["no adaptation", "`poise`, shuffled", "the source model answered"]
    return table(head, body) if body else ""


def estimate_verdict(robust: pd.DataFrame) -> str:
    """The errors of the estimates on these streams, and where the ECE is above that of no adaptation."""
    both = paired(robust).dropna(subset=["estimate"])
    if both.empty:
        return ""
    errors = both["estimate"] - both["accuracy"]
    worst, single = both.iloc[int(errors.abs().to_numpy().argmax())], errors[both["stream"] == ONE]
    return (
        f"On streams this short the estimate is too high by {told(errors.mean())} on average, in batches of "
        f"1 by {told(single.mean())}; it is off most on {plain(worst['target'])}, {worst['stream']} "
        f"({told(worst['estimate'], 2)} for {told(worst['accuracy'], 2)}). The ECE is above that of no "
        f"adaptation on {int((both['ece'] > both['ece_source']).sum())} of {len(both)} streams."
    )


def tent_verdict(robust: pd.DataFrame) -> str:
    """The number of streams on which TENT collapsed, in a sentence; empty where it was not run."""
    met, lost = paired(robust, "tent"), collapsed(robust, "tent")
    if met.empty:
        return ""
    streams = f"{met['stream'].nunique()} of the {robust['stream'].nunique()} kinds of stream"
    return f"TENT, which met {streams}, collapsed on {len(lost)} of {len(met)}."


def images(robust: pd.DataFrame) -> str:
    """The number of images of a stream, or the least and the most; empty where no stream was run."""
    if robust.empty:
        return ""
    low, high = robust["images"].min(), robust["images"].max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
