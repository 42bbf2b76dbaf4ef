"""Poise under streams that break other methods, from robust.csv."""

import pandas as pd
from measured import Place
from robust_streams import STREAMS
from wording import plain, signed, table, told

from equipoise.report.paper import experiments

LOST = 0.05
"""A stream collapsed where accuracy, on it or afterwards, is so much below no adaptation and chance."""
PLAIN = "batches of 50"
"""The stream with neither an order, nor passes, nor batches that a method was not made for."""
CHANGED = [name for name, stream in STREAMS.items() if stream.changes]
"""Streams with other images than the plain one."""
TARGET = ["data", "backbone", "target"]
CHANCE = {"digits": 1 / 10, "pacs": 1 / 7}
"""The accuracy of guessing: an accuracy below that hides a collapse where no adaptation is worse still."""


def paired(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """A row for each target and stream that a method met, beside no adaptation on the same stream.

    `change` and `change_after` are the differences, on the stream and on a shuffled one afterwards, from the
    higher of no adaptation and chance. `against_plain` is the difference from the method itself on the plain
    stream; NaN where the images are others.
    """
    scores = ["accuracy", "after"]
    mine = robust[robust["method"] == method]
    source = robust[robust["method"] == "source"][[*TARGET, "stream", *scores]]
    own = mine[mine["stream"] == PLAIN][[*TARGET, "accuracy"]]
    both = mine.merge(source, on=[*TARGET, "stream"], suffixes=("", "_source"))
    both = both.merge(own, on=TARGET, how="left", suffixes=("", "_plain"))
    chance = both["data"].map(CHANCE)
    lost = {name: both[name] - both[f"{name}_source"].clip(lower=chance) for name in scores}
    plain_accuracy = both["accuracy_plain"].mask(both["stream"].isin(CHANGED))
    return both.assign(
        change=lost["accuracy"],
        change_after=lost["after"],
        against_plain=both["accuracy"] - plain_accuracy,
    )


def collapsed(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """The rows of `paired` that collapsed."""
    both = paired(robust, method)
    return both[(both["change"] < -LOST) | (both["change_after"] < -LOST)]


def forgone(robust: pd.DataFrame, method: str = "poise") -> pd.DataFrame:
    """The rows of `paired` where a method is much less accurate than itself on the plain stream."""
    both = paired(robust, method)
    return both[both["against_plain"] < -LOST]


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
            change = group["accuracy"] - group["accuracy_source"]
            worst = group.loc[change.idxmin()]
            least = f"{signed(change.min())} ({plain(worst['target'])})"
            body.append([str(stream), source, f"{ours} ({estimate})", ece, after, least])
        head = ["stream", "no adaptation", "`poise` (estimate)", "ECE", "afterwards", "worst target"]
        parts.append(f"**{Place(str(data), str(backbone))}**\n\n{table(head, body)}")
    return "\n\n".join(parts)


def verdict(robust: pd.DataFrame) -> str:
    """Whether any stream collapsed, and where the gain of adapting was lost, in sentences."""
    both, lost = paired(robust), collapsed(robust)
    if both.empty:
        return "Not run."
    rule = (
        f"more than {told(LOST, 2)} less accurate than no adaptation and than chance, on the stream or on "
        "a shuffled one afterwards"
    )
    if lost.empty:
        first = (
            f"**No stream of {len(both)} collapsed**, that is, on none was `poise` {rule} (at worst "
            f"{signed(both['change'].min())} on the stream, {signed(both['change_after'].min())} afterwards)."
        )
    else:
        found = "; ".join(f"{_stream(row)} {signed(row['change'])}" for _, row in lost.iterrows())
        first = f"**{len(lost)} of {len(both)} streams collapsed**, that is, `poise` was {rule}: {found}."
    return f"{first} {_forgone_verdict(robust)}".rstrip()


def _forgone_verdict(robust: pd.DataFrame) -> str:
    less = forgone(robust)
    if less.empty:
        return ""
    by_source = less["answered_by_source"] > 0.5
    found = "; ".join(
        f"{_stream(row)} ({told(row['accuracy'])}, no adaptation {told(row['accuracy_source'])}, in {PLAIN} "
        f"{told(row['accuracy_plain'])})"
        for _, row in less.iterrows()
    )
    return (
        f"On {len(less)} streams it is more than {told(LOST, 2)} less accurate than itself in {PLAIN}, "
        f"{by_source.sum()} of them because it lets the source model answer: {found}."
    )


def _stream(row: pd.Series) -> str:
    return f"{Place(row['data'], row['backbone'])} → {plain(row['target'])}, {row['stream']}"


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
