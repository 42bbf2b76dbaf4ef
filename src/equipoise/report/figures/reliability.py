"""Reliability diagrams: are the answers of a confidence right as often as it says?"""

from typing import TypedDict

from equipoise.report.figures.sections import Shares
from equipoise.report.figures.svg import Frame, axis_names, grid, line, picture, rect


class _Binned(TypedDict):
    """Answers sorted into bins by confidence; an empty bin has no confidence and no accuracy."""

    lower: list[float]
    upper: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]


class Bins(_Binned):
    """With how many answers are in each bin."""

    count: list[int]


class ShareBins(_Binned):
    """With the share of all answers that is in each bin."""

    count: list[float]


def bins_of(sums: Shares) -> ShareBins:
    """The mean confidence and the accuracy in bins of equal width, from the shares of all answers in them."""
    count = sums["count"]
    size = len(count)
    return ShareBins(
        lower=[index / size for index in range(size)],
        upper=[(index + 1) / size for index in range(size)],
        count=count,
        confidence=[total / n if n else None for total, n in zip(sums["confidence"], count, strict=True)],
        accuracy=[hits / n if n else None for hits, n in zip(sums["correct"], count, strict=True)],
    )


def reliability_diagram(bins: Bins | ShareBins, label: str, *, side: float = 126, named: bool = True) -> str:
    """Accuracy in each bin of confidence, the gap to the confidence shaded, and how many answers it has.

    Calibrated answers have bars that end at the diagonal. `named=False` leaves out the names of the axes and
    the marks in the middle, for many small diagrams of `side` units beside each other.
    """
    frame = Frame(left=36 if named else 16, top=8, width=side, height=side, x_max=1, y_max=1)
    counts_top, counts_height = frame.bottom + 4, 20.0 if named else 14.0
    counts_bottom = counts_top + counts_height
    most = max(bins["count"], default=0)
    shapes = []
    for position, count in enumerate(bins["count"]):
        accuracy, confidence = bins["accuracy"][position], bins["confidence"][position]
        if accuracy is None or confidence is None:
            continue
        left, right = frame.x(bins["lower"][position]), frame.x(bins["upper"][position])
        gap = "over" if confidence > accuracy else "under"
        high, low = max(accuracy, confidence), min(accuracy, confidence)
        tall = counts_height * count / most
        shapes += [
            rect("bar", left, frame.y(low), right - left, frame.y(0) - frame.y(low)),
            rect(gap, left, frame.y(high), right - left, frame.y(low) - frame.y(high)),
            rect("count", left, counts_bottom - tall, right - left, tall),
        ]
    scale = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")] if named else [(0.0, "0"), (1.0, "1")]
    drawing = [
        *grid(frame, scale, scale, x_labels_at=counts_bottom + 12),
        *shapes,
        line("diagonal", frame.x(0), frame.y(0), frame.x(1), frame.y(1)),
        line("axis", frame.left, counts_bottom, frame.right, counts_bottom),
        *(axis_names(frame, "confidence", "accuracy", counts_bottom + 28) if named else ()),
    ]
    description = (
        f"Reliability diagram of {label}: accuracy in each bin of confidence, and the number of answers."
    )
    return picture(frame.right + 6, counts_bottom + (32 if named else 16), description, drawing)
