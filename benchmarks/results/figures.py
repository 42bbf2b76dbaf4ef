"""The two pictures of docs/results.md: the ECE of every method, and estimated against true accuracy.

A drawing has its own background and follows the reader's light or dark setting.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.pages import told
from benchmarks.results.measured import (
    DEC,
    LABELS,
    NAMES,
    NETWORKS,
    POISE,
    Place,
    at,
    estimated,
    mean,
    networks,
)
from equipoise.research.report.results import Variant
from equipoise.research.report.style import (
    ACCENT,
    INK,
    MUTED,
    SERIES,
    Colour,
    palette_css,
    panels,
    svg,
    themed,
)

WIDTH = 7.3
"""Inches; 700 pixels on a page."""
TICKS = {0.0: "0", 0.2: ".2", 0.4: ".4", 0.6: ".6", 0.8: ".8"}
MARKS = {"smallcnn": ("o", SERIES[1]), "efficientnet_b0": ("s", SERIES[4]), "mobilenet_v1": ("^", SERIES[0])}


@themed
def calibration_figure(cells: pd.DataFrame) -> Figure:
    """A panel for each data set and network: others as grey dots, poise in colour, floors as ticks."""
    found = networks(cells)
    figure, axes = panels(WIDTH, 3.3, columns=len(found))
    for axis, place in zip(axes, found, strict=True):
        _calibration_axes(axis, at(cells, place), place)
        if axis is not axes[0]:
            axis.tick_params(axis="y", labelleft=False)
    right = 1.35 * max(axis.dataLim.x1 for axis in axes)  # the numbers need room
    for axis in axes:
        axis.set_xlim(-0.06 * right, right)
        axis.set_xticks(
            [tick for tick in TICKS if tick < right], [name for tick, name in TICKS.items() if tick < right]
        )
    figure.supxlabel(
        "ECE: distance of confidence from accuracy (lower is better)", fontsize=9, color=INK.light
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def _calibration_axes(axis: Axes, rows: pd.DataFrame, place: Place) -> None:
    """One panel, a row for each method."""
    for height, label in enumerate(LABELS):
        ours = label == POISE.name
        ece, floor = mean(rows, shown(label), "ece"), mean(rows, Variant(label, "oracle"), "ece")
        colour = (ACCENT if ours else MUTED).light
        if ece is None:
            continue
        marker, size, words = ("D", 7.5, "poise") if ours else ("o", 5.5, "other methods")
        name = words if label in (POISE.name, "source") else None
        axis.plot(ece, height, marker, color=colour, markersize=size, label=name, zorder=3)
        axis.annotate(
            told(ece),
            (ece, height),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9 if ours else 7.5,
            fontweight="bold" if ours else "normal",
        )
        if floor is not None:
            name = "floor: one temperature, found with labels" if label == "source" else None
            axis.plot([floor, ece], [height, height], color=colour, linewidth=1, alpha=0.4, zorder=2)
            axis.plot(floor, height, "|", color=INK.light, markersize=8, mew=1.4, label=name, zorder=4)
    axis.set_title(f"{NAMES[place.data]}\n{NETWORKS[place.backbone]}", fontsize=9)
    axis.set(yticks=range(len(LABELS)), yticklabels=LABELS.values(), ylim=(len(LABELS) - 0.4, -0.6))
    axis.tick_params(axis="y", length=0)
    axis.get_yticklabels()[list(LABELS).index(POISE.name)].set(color=ACCENT.light, fontweight="bold")
    axis.grid(visible=False, axis="y")


def shown(label: str) -> Variant:
    """A method as its authors have it: DEC of the paper by the mean of tau, poise rehearsed, others raw."""
    return {each.name: each for each in (DEC, POISE)}.get(label, Variant(label, "none"))


@themed
def estimate_figure(cells: pd.DataFrame) -> Figure:
    """A panel for each data set: a point for each stream, with its interval, against the identity."""
    streams = estimated(cells)
    names = [data for data in NAMES if (streams["data"] == data).any()]
    figure, axes = panels(WIDTH, 3.0, columns=max(len(names), 1))
    for axis, data in zip(axes, names, strict=False):
        axis.plot([0, 1], [0, 1], "--", color=INK.light, linewidth=0.9)
        for backbone, rows in streams[streams["data"] == data].groupby("backbone"):
            reach = rows[["value", "low", "high"]]
            points(axis, rows["accuracy"], reach, *MARKS[str(backbone)], NETWORKS[str(backbone)])
        against_truth(axis, NAMES[data], fontsize=8)
    axes[0].set_ylabel("estimated, without labels")
    return figure


def points(
    axis: Axes,
    truth: pd.Series,
    reach: pd.DataFrame,
    marker: str,
    colour: Colour,
    label: str,
    *,
    small: bool = False,
) -> None:
    """A point for each row: the true accuracy, and an estimate with the ends of its interval."""
    value, low, high = (reach[name] for name in reach)
    size, width, alpha = (3, 0.6, 0.6) if small else (3.5, 0.8, 0.7)
    axis.errorbar(
        truth,
        value,
        yerr=[value - low, high - value],
        fmt=marker,
        color=colour.light,
        markersize=size,
        elinewidth=width,
        alpha=alpha,
        label=label,
    )


def against_truth(axis: Axes, title: str, fontsize: float) -> None:
    """The scales of an axis of estimates against true accuracies, and its legend."""
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="true accuracy", title=title)
    axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axis.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    axis.legend(loc="lower right", fontsize=fontsize, handletextpad=0.2)


def standalone(figure: Figure, description: str) -> str:
    """A figure as an SVG file with its background, in the colours of the reader's setting."""
    drawn = svg(figure, description)
    style = f"<style>{palette_css()}svg {{ background: var(--paper) }}</style>"
    head, _, body = drawn.partition(">")
    size = f'xmlns="http://www.w3.org/2000/svg" width="{figure.get_figwidth() * 96:.0f}"'
    return f"{head.replace('<svg', f'<svg {size}', 1)}>{style}{body}"
