"""A traced run as a story: each method over time and in each segment of the stream, and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from equipoise.errors import DataError
from equipoise.research.experiment.schema import RAW, REHEARSED, BatchTrace, SegmentScores

IN_SENTENCES = {"source": "the plain model", "tent": "TENT", "poise": "equipoise"}
"""The names of the methods in sentences; others have their own."""


@dataclass(frozen=True)
class Told:
    """One method in the story.

    Attributes:
        method: its name in the registry.
        batches: a row for each batch: `image`, the number of its last image, `segment`, the share that is
            `correct`, the mean `confidence`, and the estimate of the accuracy (`value`, `low`, `high`) where
            the method has one.
        segments: a row for each segment: `says`, the mean confidence, `right`, the accuracy, `ece`, `nll`,
            and `reliability`, the sums of the segment.
        whole: the same numbers for the whole stream. `ece` is the mean over the segments, by their images:
            in a mixture of segments, too much certainty in one hides too little in another.
    """

    method: str
    batches: pd.DataFrame
    segments: pd.DataFrame
    whole: pd.Series

    @property
    def name(self) -> str:
        """The method's name in sentences."""
        return IN_SENTENCES.get(self.method, self.method)

    @property
    def title(self) -> str:
        """The method's name as a heading."""
        name = self.name.removeprefix("the ")
        return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Story:
    """The methods of a traced run on one stream, and the segments of the stream with their last image."""

    methods: tuple[Told, ...]
    ends: dict[str, int]

    @property
    def total(self) -> int:
        """The number of images of the stream."""
        return max(self.ends.values())

    @property
    def plain(self) -> Told:
        """The model without adaptation."""
        return self.methods[0]

    @property
    def hero(self) -> Told:
        """The last method: the one that the story is about."""
        return self.methods[-1]

    @property
    def worst(self) -> str:
        """The segment in which the plain model is right least often."""
        return str(self.plain.segments["right"].idxmin())


def tell(runs: pd.DataFrame) -> Story:
    """The story of traced results on one stream: methods raw, or rehearsed where they are, baseline first."""
    frame = runs[runs["trace"].notna()]
    best = {REHEARSED: 0, RAW: 1}
    frame = frame[frame["tempering"].isin(best)].sort_values("tempering", key=lambda kinds: kinds.map(best))
    if len(frame[["shift", "seed"]].drop_duplicates()) > 1:
        raise DataError("expected results of one stream and one seed, got several")
    rows = frame.drop_duplicates("name").sort_index()
    if rows.empty:
        raise DataError("expected results of a recipe with `trace: true`, and of no or rehearsed tempering")
    order = sorted(
        rows.index, key=lambda row: (rows["method"][row] != "source", rows["method"][row] == "poise")
    )
    methods = tuple(_told(rows.loc[row]) for row in order)
    sizes = [(segment["name"], segment["images"]) for segment in rows.iloc[0]["trace"]["segments"]]
    names, images = zip(*sizes, strict=True)
    return Story(methods, dict(zip(names, pd.Series(images).cumsum().tolist(), strict=True)))


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def headline(story: Story) -> str:
    """One sentence in numbers: the plain model and ours where the plain model is right least often."""
    plain, hero = (told.segments.T.to_dict()[story.worst] for told in (story.plain, story.hero))
    return (
        f"Where drift is worst, {story.plain.name} says {percent(plain['says'])} and is right "
        f"{percent(plain['right'])} of the time; {story.hero.name} says {percent(hero['says'])} and is right "
        f"{percent(hero['right'])}."
    )


def findings(story: Story) -> list[str]:
    """A few sentences with numbers."""
    first, plain, hero = next(iter(story.ends)), story.plain, story.hero
    by_day = [percent(told.segments["right"][first], 1) for told in (plain, hero)]
    right = [f"{percent(told.whole['right'], 1)} for {told.name}" for told in story.methods]
    ece = [f"{told.whole['ece']:.3f} for {told.name}" for told in story.methods]
    found = [
        f"Right answers without drift ({first}): {by_day[0]} for {plain.name}, {by_day[1]} for {hero.name}.",
        f"Right answers in the whole stream: {', '.join(right)}.",
        f"Calibration error (ECE), mean over the segments: {', '.join(ece)}.",
    ]
    estimated = hero.batches.dropna(subset="value")
    if len(estimated):
        off = (estimated["value"] - estimated["recent"]).abs().mean()
        inside = estimated["recent"].between(estimated["low"], estimated["high"]).mean()
        found.append(
            f"The accuracy that {hero.name} estimates without labels is off by {off:.3f} on average, against "
            f"the last {RECENT} batches; the true accuracy is inside the 90\N{NO-BREAK SPACE}% band "
            f"{percent(inside)} of the time."
        )
    return found


RECENT = 10
"""Batches over which the truth beside an estimate is counted: an estimate follows the recent stream."""


def _told(row: "pd.Series") -> Told:
    trace = row["trace"]
    ends = [(segment["name"], segment["images"]) for segment in trace["segments"]]
    segments = pd.DataFrame([_scores(segment) for segment in trace["segments"]]).set_index("segment")
    whole = pd.Series(
        {
            "says": sum(row["reliability"]["confidence"]) / row["images"],
            "right": row["accuracy"],
            "ece": sum(segment["scores"]["ece"] * segment["images"] for segment in trace["segments"])
            / row["images"],
            "nll": row["nll"],
        }
    )
    return Told(row["method"], _batches(trace["batches"], ends), segments, whole)


def _batches(batches: Sequence[BatchTrace], sizes: Sequence[tuple[str, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "images": batch["images"],
            "hits": batch["correct"],
            "confidence": batch["confidence"],
            **dict.fromkeys(("value", "low", "high")),
            **(batch["estimate"] or {}),
        }
        for batch in batches
    ).astype(float)
    frame["image"] = frame["images"].cumsum()
    names, images = zip(*sizes, strict=True)
    edges = pd.Series(images, dtype=float).cumsum()
    middle = frame["image"] - frame["images"] / 2
    frame["segment"] = [names[int(place)] for place in edges.searchsorted(middle.to_numpy(), side="right")]
    frame["correct"] = frame["hits"] / frame["images"]
    recent = frame[["hits", "images"]].rolling(RECENT, min_periods=1).sum()
    frame["recent"] = recent["hits"] / recent["images"]
    return frame


def _scores(segment: SegmentScores) -> dict[str, Any]:
    scores = segment["scores"]
    return {
        "segment": segment["name"],
        "says": sum(segment["reliability"]["confidence"]) / segment["images"],
        "right": scores["accuracy"],
        "ece": scores["ece"],
        "nll": scores["nll"],
        "reliability": segment["reliability"],
    }
