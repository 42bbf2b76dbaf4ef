"""The picture of docs/monitoring.md: estimates against truth, by stream and by window, and along a jump."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results.figures import MARKS, WIDTH
from benchmarks.results.measured import NETWORKS
from equipoise.research.report.drawing import ACCENT, INK, MUTED, SERIES, panels, themed

COLOURS = {"mnist": SERIES[1], "usps": SERIES[3], "svhn": SERIES[0]}


@themed
def monitoring_figure(streams: pd.DataFrame, windows: pd.DataFrame, jumps: pd.DataFrame) -> Figure:
    """Three panels: streams of the paper's data, windows of Digits, and streams that jump."""
    figure, axes = panels(WIDTH, 3.1, columns=3)
    for backbone, rows in streams.groupby("backbone"):
        marker, colour = MARKS[str(backbone)]
        _points(
            axes[0],
            rows["accuracy"],
            rows,
            ("value", "low", "high"),
            marker,
            colour.light,
            NETWORKS[str(backbone)],
        )
    names = ("accuracy", "accuracy_low", "accuracy_high")
    for (target, stream), rows in windows.groupby(["target", "stream"], sort=False):
        marker = "o" if stream == "target" else "x"
        label = f"{target}" if stream == "target" else f"sources of {target}"
        _points(axes[1], rows["true_accuracy"], rows, names, marker, COLOURS[str(target)].light, label)
    for axis, title in zip(axes, ("All streams", "Windows of 500, Digits"), strict=False):
        axis.plot([0, 1], [0, 1], "--", color=INK.light, linewidth=0.9)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="true accuracy", title=title)
        axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axis.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
        axis.legend(loc="lower right", fontsize=7, handletextpad=0.2)
    axes[0].set_ylabel("estimated, without labels")
    _jump(axes[2], jumps)
    return figure


def _points(
    axis: Axes,
    truth: pd.Series,
    rows: pd.DataFrame,
    names: tuple[str, str, str],
    marker: str,
    colour: str,
    label: str,
) -> None:
    value, low, high = (rows[name] for name in names)
    axis.errorbar(
        truth,
        value,
        yerr=[value - low, high - value],
        fmt=marker,
        color=colour,
        markersize=3,
        elinewidth=0.6,
        alpha=0.6,
        label=label,
    )


def _jump(axis: Axes, jumps: pd.DataFrame) -> None:
    """The mean over the streams of the first model that jump to noise, where accuracy falls most."""
    target = jumps["target"].iloc[0]
    means = (
        jumps[(jumps["target"] == target) & (jumps["to"] == "noise")].groupby("after").mean(numeric_only=True)
    )
    axis.fill_between(
        means.index, means["accuracy_low"], means["accuracy_high"], color=ACCENT.light, alpha=0.2
    )
    axis.plot(means.index, means["accuracy"], color=ACCENT.light, label="estimate, interval")
    axis.plot(means.index, means["true_accuracy"], color=INK.light, linewidth=1, label="truth, last 500")
    axis.axvline(0, color=MUTED.light, linewidth=0.8, linestyle=":")
    axis.set(ylim=(0, 1), xlabel="images after the jump", title="Jump to noise")
    axis.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    axis.legend(loc="lower left", fontsize=7)
