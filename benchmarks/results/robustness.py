"""Streams that break other methods, and the rule by which a method collapses on one."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from equipoise.research.report.paper import experiments
from equipoise.streams import KindName


class Stream(NamedTuple):
    """The size of batches, the order of the images, the number of passes, and whether the images change."""

    size: int = 50
    order: KindName = "recorded"
    passes: int = 1
    changes: bool = False


STREAMS = {
    "batches of 50": Stream(),
    "batches of 1": Stream(size=1),
    "batches of 16": Stream(size=16),
    "batches of 200": Stream(size=200),
    "sorted by class": Stream(order="sorted"),
    "sorted by class, batches of 1": Stream(size=1, order="sorted"),
    "ten passes": Stream(passes=10),
    "abrupt changes": Stream(changes=True),
}
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
