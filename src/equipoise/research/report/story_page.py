"""The page of a traced run: a sentence in numbers, the stream over time, reliability diagrams, tables."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from equipoise.research.report.drawing import panels, svg, themed
from equipoise.research.report.figures.over_time import over_time_figure
from equipoise.research.report.figures.reliability import reliability_axes
from equipoise.research.report.formats import html_frame
from equipoise.research.report.pages import render
from equipoise.research.report.story import Story, Told, findings, headline, percent

WIDE, NARROW = (10.8, 5.4), (4.0, 5.6)
"""Inches of the picture on a screen, and on a phone."""


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
    columns = {
        (told.title, kind): told.segments[kind].map(percent)
        for told in story.methods
        for kind in ("says", "right")
    }
    return pd.DataFrame(columns)


def stream_scores(story: Story) -> pd.DataFrame:
    """A row for each method: its scores on the whole stream."""
    heads = {"says": "says", "right": "right ↑", "ece": "ECE ↓", "nll": "NLL ↓"}
    frame = pd.DataFrame({told.title: told.whole for told in story.methods}).T
    return frame.rename(columns=heads)[list(heads.values())]


@themed
def _reliability(told: Told, segment: str) -> tuple[str, str, str]:
    figure, (axes,) = panels(2.9, 2.7)
    row = told.segments.T.to_dict()[segment]
    reliability_axes(axes, row["reliability"])
    axes.set(xlabel="confidence", ylabel="accuracy")
    words = f"ECE {row['ece']:.3f}"
    return told.title, svg(figure, f"Reliability diagram of {told.name}: {words}"), words
