"""The pictures of the tutorial's stream, for light and for dark pages.

python -m docs.drift_figure        # in the root of the repository, writes four files in docs/assets
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from numpy.typing import NDArray

import equipoise as eq
from tests.docs.pages import DOCS, examples

Series = NDArray[np.float64]
SMOOTH = 6
"""Batches that a point of a line is the mean of."""
COLOURS = {
    "light": {
        "text": "#37474f",
        "grid": "#dfe4e6",
        "accuracy": "#37474f",
        "plain": "#d9480f",
        "poise": "#0b7285",
    },
    "dark": {
        "text": "#cfd8dc",
        "grid": "#3b474c",
        "accuracy": "#cfd8dc",
        "plain": "#ff922b",
        "poise": "#4fc3d6",
    },
}


def tutorial() -> dict[str, Any]:
    """The names of the tutorial after it has run."""
    page, names = DOCS / "tutorial.md", {"__name__": "page"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for example in examples(page):
            example.run(page, names)
        os.chdir(before)
    return names


def smoothed(values: torch.Tensor) -> Series:
    """The mean of each batch, and over the last few batches."""
    batches = values.double().view(-1, 50).mean(1).numpy()
    return np.array([batches[max(0, at - SMOOTH + 1) : at + 1].mean() for at in range(len(batches))])


def streams(names: dict[str, Any]) -> dict[str, dict[str, Series]]:
    """Accuracy and confidence of the plain model and of poise; of poise also the estimate with its band."""
    images, labels = names["stream_images"], names["stream_labels"]
    adapter, answers, estimates = eq.Poise(names["model"], names["source"]), [], []
    for batch in images.split(50):
        answers.append(adapter(batch))
        estimate = adapter.accuracy
        if estimate is None:
            raise RuntimeError("expected a rehearsed adapter")
        estimates.append((estimate.low, estimate.value, estimate.high))
    low, value, high = np.array(estimates).T
    found = {}
    for name, logits in {"plain": names["plain"], "poise": torch.cat(answers)}.items():
        confidence, answer = logits.softmax(1).max(1)
        found[name] = {"accuracy": smoothed(answer == labels), "confidence": smoothed(confidence)}
    found["poise"] |= {"low": low, "estimate": value, "high": high}
    return found


def draw(axes: Axes, title: str, lines: dict[str, Series], colour: str, colours: dict[str, str]) -> None:
    """One model: its accuracy, what it claims, and its estimate if it has one."""
    batches = np.arange(1, len(lines["accuracy"]) + 1)
    if "low" in lines:
        band = "estimate without labels, 90 % interval"
        axes.fill_between(batches, lines["low"], lines["high"], color=colour, alpha=0.16, lw=0, label=band)
    axes.plot(
        batches,
        lines["accuracy"],
        color=colours["accuracy"],
        lw=2,
        ls=(0, (1, 1)),
        label="share that is right",
    )
    axes.plot(batches, lines["confidence"], color=colour, lw=2.4, label="confidence it claims")
    for edge in (20, 40):
        axes.axvline(edge + 0.5, color=colours["grid"], lw=1)
    for place, part in ((10, "noon"), (30, "evening"), (50, "night")):
        axes.text(place, 1.03, part, ha="center", color=colours["text"], fontsize=9)
    axes.set_title(title, loc="left", pad=18, fontsize=12, fontweight="bold", color=colours["text"])
    axes.set_xlabel("batch of 50 images", color=colours["text"])
    axes.set_ylim(0, 1)
    axes.set_xlim(1, len(batches))
    axes.tick_params(colors=colours["text"], length=0)
    axes.grid(axis="y", color=colours["grid"], lw=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    legend = axes.legend(loc="lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_color(colours["text"])


def main() -> None:
    """Run the tutorial and write its pictures."""
    torch.set_num_threads(1)
    found = streams(tutorial())
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "drift", "font.family": "sans-serif"})
    for theme, colours in COLOURS.items():
        for name, title in (("plain", "The plain model"), ("poise", "The same model in eq.Poise")):
            figure, axes = plt.subplots(figsize=(4.8, 3.6), layout="constrained")
            draw(axes, title, found[name], colours[name], colours)
            figure.savefig(DOCS / "assets" / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
