"""A traced run as a story: each method over time and in each segment, in numbers, a figure and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from equipoise.errors import DataError
from equipoise.research.experiment.schema import RAW, REHEARSED, BatchTrace, SegmentScores
from equipoise.research.report.figures import reliability_axes
from equipoise.research.report.style import (
    ACCENT,
    INK,
    MUTED,
    OVER,
    UNDER,
    method_colour,
    panels,
    render,
    svg,
    themed,
)
from equipoise.research.report.table import html_frame

IN_SENTENCES = {"source": "the plain model", "tent": "TENT", "poise": "equipoise"}
"""The names of the methods in sentences; others have their own."""
RECENT = 10
"""Batches over which the truth beside an estimate is counted: an estimate follows the recent stream."""
SMOOTHED = 5
"""Batches that a point of a curve is the mean of; a curve is not smoothed across two segments."""
WIDE, NARROW = (10.8, 5.4), (4.0, 5.6)
"""Inches of the picture on a screen, and on a phone."""


class Estimated(NamedTuple):
    """How estimates of the accuracy agree with the truth of the recent batches.

    Attributes:
        error: the mean distance between the two.
        held: the share of batches after which the interval holds the truth.
    """

    error: float
    held: float


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

    @property
    def estimated(self) -> Estimated | None:
        """The method's estimates of its accuracy against the truth, where it has any."""
        rows = self.batches.dropna(subset="value")
        if rows.empty:
            return None
        held = rows["recent"].between(rows["low"], rows["high"])
        return Estimated(float((rows["value"] - rows["recent"]).abs().mean()), float(held.mean()))

    def at(self, segment: str) -> dict[str, Any]:
        """The scores of one segment."""
        scores: dict[Any, dict[str, Any]] = self.segments.T.to_dict()
        return scores[segment]


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
    methods = map(_told, (row for _, row in rows.iterrows()))
    order = sorted(methods, key=lambda told: (told.method != "source", told.method == "poise"))
    segments = rows.iloc[0]["trace"]["segments"]
    ends = accumulate(segment["images"] for segment in segments)
    return Story(tuple(order), {segment["name"]: end for segment, end in zip(segments, ends, strict=True)})


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def headline(story: Story) -> str:
    """One sentence in numbers: each method where the plain model is right least often."""
    told = [
        f"{each.name} says {percent(scores['says'])} and is right {percent(scores['right'])}"
        for each in story.methods
        for scores in [each.at(story.worst)]
    ]
    return f"Where drift is worst, {'; '.join(told)} of the time."


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
    if hero.estimated is not None:
        found.append(
            f"The accuracy that {hero.name} estimates without labels is off by {hero.estimated.error:.3f} on "
            f"average, against the last {RECENT} batches; the true accuracy is inside the "
            f"90\N{NO-BREAK SPACE}% band {percent(hero.estimated.held)} of the time."
        )
    return found


def _told(row: "pd.Series") -> Told:
    """One method of a row of results."""
    trace, images = row["trace"], row["images"]
    segments = pd.DataFrame(map(_scores, trace["segments"])).set_index("name")
    whole = {
        "says": sum(row["reliability"]["confidence"]) / images,
        "right": row["accuracy"],
        "ece": sum(segments["ece"] * segments["images"]) / images,
        "nll": row["nll"],
    }
    return Told(row["method"], _batches(trace["batches"], segments["images"]), segments, pd.Series(whole))


def _batches(batches: Sequence[BatchTrace], sizes: "pd.Series[int]") -> pd.DataFrame:
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
    middle = frame["image"] - frame["images"] / 2
    frame["segment"] = sizes.index[np.searchsorted(sizes.cumsum(), middle, side="right")]
    frame["correct"] = frame["hits"] / frame["images"]
    recent = frame[["hits", "images"]].rolling(RECENT, min_periods=1).sum()
    frame["recent"] = recent["hits"] / recent["images"]
    return frame


def _scores(segment: SegmentScores) -> dict[str, Any]:
    says = sum(segment["reliability"]["confidence"]) / segment["images"]
    return {**segment, **segment["scores"], "says": says, "right": segment["scores"]["accuracy"]}


def over_time_figures(runs: pd.DataFrame) -> dict[str, Figure]:
    """A figure for each traced stream and seed, by its name; none where nothing is traced."""
    traced = runs[runs["trace"].notna() & runs["tempering"].isin((RAW, REHEARSED))]
    found = {}
    for (shift, seed), rows in traced.groupby(["shift", "seed"]):
        story = tell(rows)
        height = 0.9 + 1.45 * len(story.methods)
        found[f"{shift}, seed {seed}"] = over_time_figure(story, (), WIDE[0], height)
    return found


@themed
def over_time_figure(
    story: Story, frames: Sequence[NDArray[np.uint8]], width: float, height: float
) -> Figure:
    """A row of example images along the time axis, and below it a panel for each method.

    In a panel the thin line is the share of right answers, the thick line the mean confidence; the gap is
    shaded by its sign. The accuracy that a method estimates for itself is a dotted line with its band.
    """
    figure = Figure(figsize=(width, height))
    heights = [0.55 if len(frames) else 0.05, *[1.0] * len(story.methods)]
    rows = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    figure.subplots_adjust(
        left=0.56 / width, right=1 - 0.2 / width, top=1 - 0.24 / height, bottom=0.44 / height, hspace=0.36
    )
    curves = [smoothed(told) for told in story.methods]
    lowest = min(float(curve[["correct", "confidence"]].to_numpy().min()) for curve in curves)
    _film(rows[0], story, frames)
    for axes, told, curve in zip(rows[1:], story.methods, curves, strict=True):
        _panel(axes, told, curve, story)
        axes.set_ylim(max(0.0, np.floor(lowest * 10) / 10 - 0.05), 1.03)
    rows[-1].set_xlabel("images of the stream, in the order in which they arrive")
    return figure


def smoothed(told: Told) -> pd.DataFrame:
    """The curves of a method: means over neighbouring batches of the same segment."""
    curves, drawn = told.batches.copy(), ["correct", "confidence"]
    grouped = told.batches.groupby("segment", sort=False)[drawn]
    curves[drawn] = grouped.transform(lambda each: each.rolling(SMOOTHED, center=True, min_periods=1).mean())
    return curves


def _film(axes: Axes, story: Story, frames: Sequence[NDArray[np.uint8]]) -> None:
    """Example images at equal distances along the time axis, with the names of the segments above."""
    axes.set(xlim=(0, story.total), ylim=(0, 1))
    axes.axis("off")
    for place, image in enumerate(frames):
        side = axes.inset_axes((place / len(frames), 0, 1 / len(frames), 1))
        side.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        side.axis("off")
    start = 0
    for name, end in story.ends.items():
        look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 9}
        axes.annotate(name, ((start + end) / 2, 1), (0, 4), **look)
        start = end


def _panel(axes: Axes, told: Told, curve: pd.DataFrame, story: Story) -> None:
    colour = method_colour(told.method).light
    at, right, says = (curve[name].to_numpy() for name in ("image", "correct", "confidence"))
    _gap(axes, at, right, says)
    shown: dict[str, Any] = {}
    if curve["value"].notna().any():
        band = axes.fill_between(at, curve["low"], curve["high"], color=ACCENT.light, alpha=0.14, linewidth=0)
        (own,) = axes.plot(at, curve["value"], color=ACCENT.light, linewidth=1, linestyle=":")
        shown["own estimate, 90\N{NO-BREAK SPACE}% band"] = (band, own)
    (line,) = axes.plot(at, right, color=INK.light, linewidth=1.4)
    (stated,) = axes.plot(at, says, color=colour, linewidth=2)
    if told is story.plain:
        shown = {"says": stated, "is right": line}
    elif not shown:
        kinds = {"too certain": OVER, "too uncertain": UNDER}
        shown = {name: Patch(color=kind.light, alpha=0.3) for name, kind in kinds.items()}
    if shown:
        axes.legend(
            list(shown.values()), list(shown), loc="lower right", bbox_to_anchor=(1, 0.98), ncols=3,
            fontsize=8.5, handlelength=1.3, columnspacing=1.0, borderaxespad=0, labelcolor=MUTED.light,
        )  # fmt: skip
    for end in list(story.ends.values())[:-1]:
        axes.axvline(end, color=MUTED.light, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_title(told.title, color=colour, fontweight="bold", pad=4)
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlim(0, story.total)


def _gap(axes: Axes, at: NDArray[np.float64], right: NDArray[np.float64], says: NDArray[np.float64]) -> None:
    """Shade the distance of two curves by its sign."""
    for over, colour in ((True, OVER), (False, UNDER)):
        where = (says >= right) == over
        axes.fill_between(
            at, right, says, where=where, color=colour.light, alpha=0.3, linewidth=0, interpolate=True
        )


def story_page(story: Story, frames: Sequence[NDArray[np.uint8]], facts: str) -> str:
    """The whole page; `facts` are the versions and sizes of the run, for its foot."""
    described = f"{headline(story)} Accuracy and confidence of each method over the stream."
    few = frames[:: max(1, len(frames) // 6)]
    return render(
        "story.html",
        title="equipoise: a classifier that knows when it is wrong",
        kind="demo",
        headline=headline(story),
        wide=svg(over_time_figure(story, frames, *WIDE), described),
        narrow=svg(over_time_figure(story, few, *NARROW), described),
        hero=story.hero.name,
        worst=story.worst,
        findings=findings(story),
        reliability=[_reliability(told, story.worst) for told in story.methods],
        segments=html_frame(says_and_right(story), "Certainty and accuracy in each segment"),
        scores=html_frame(stream_scores(story), "Scores of the whole stream"),
        facts=facts,
    )


def says_and_right(story: Story) -> pd.DataFrame:
    """A row for each segment, and two columns for each method: its confidence, and its accuracy."""
    pairs = product(story.methods, ("says", "right"))
    return pd.DataFrame({(told.title, kind): told.segments[kind].map(percent) for told, kind in pairs})


def stream_scores(story: Story) -> pd.DataFrame:
    """A row for each method: its scores on the whole stream."""
    heads = {"says": "says", "right": "right ↑", "ece": "ECE ↓", "nll": "NLL ↓"}
    frame = pd.DataFrame({told.title: told.whole for told in story.methods}).T
    return frame.rename(columns=heads)[list(heads.values())]


@themed
def _reliability(told: Told, segment: str) -> tuple[str, str, str]:
    figure, (axes,) = panels(2.9, 2.7)
    row = told.at(segment)
    reliability_axes(axes, row["reliability"])
    axes.set(xlabel="confidence", ylabel="accuracy")
    words = f"ECE {row['ece']:.3f}"
    return told.title, svg(figure, f"Reliability diagram of {told.name}: {words}"), words
