"""The picture of a rehearsal: how well accuracy is estimated, and what that does to reliability."""

import os

from torch import Tensor

from equipoise.calibration.rehearsal import Rehearsal, calibration_error

_INK, _ACCENT, _PALE = "#33415c", "#d1495b", "#b8c4d6"


def draw(rehearsal: Rehearsal, path: str | os.PathLike[str]) -> None:
    """Draw two panels to a file of the kind of its ending (.png, .svg, .pdf).

    Left, the accuracy of each stream against the estimate of a regression that never saw its shift; right,
    accuracy against confidence over all streams, untempered and tempered.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the figure of a rehearsal needs matplotlib: pip install 'equipoise[demo]'", name="matplotlib"
        ) from error
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    shuffled = [run for run in rehearsal.runs if run.order == "shuffled"]
    others = [run for run in rehearsal.runs if run.order != "shuffled"]
    for runs, marker, order in ((shuffled, "o", "shuffled"), (others, "^", "any other")):
        x, y = [run.accuracy for run in runs], [run.estimate for run in runs]
        left.scatter(x, y, marker=marker, s=26, color=_ACCENT, label=f"{order} stream", linewidths=0)
    left.set(xlabel="true accuracy", ylabel="estimate without labels")
    left.set_title(f"{rehearsal.method}: known within {rehearsal.error:.3f} on average", fontsize=10)
    bars = ((rehearsal.bins[0], "untempered", _PALE), (rehearsal.bins[1], "tempered", _ACCENT))
    for bins, label, colour in bars:
        x, y = _points(bins)
        right.plot(x, y, "o-", color=colour, label=f"{label}: ECE {calibration_error(bins):.3f}")
    right.set(xlabel="confidence", ylabel="accuracy")
    right.set_title("all rehearsed streams together", fontsize=10)
    for axes in (left, right):
        axes.plot([0, 1], [0, 1], "--", color=_INK, linewidth=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=150)


def _points(bins: Tensor) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of the bins that have at least one answer in a thousand."""
    count, confidence, hits = bins
    some = count > count.sum() / 1000
    return (confidence[some] / count[some]).tolist(), (hits[some] / count[some]).tolist()
