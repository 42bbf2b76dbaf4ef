"""The moving average of a stream's probabilities, which ETA and ROID keep."""

from equipoise.core.method import Memory
from equipoise.errors import StateError

AVERAGE_ANSWER = "average"
"""The name of the memory that holds the average."""


def check_average(memory: Memory, classes: int | None) -> None:
    """Raise StateError for an average of another number of classes."""
    average = memory.get(AVERAGE_ANSWER)
    if average is not None and (average.ndim != 1 or classes not in (None, len(average))):
        raise StateError(f"expected an average of {classes} classes, got {tuple(average.shape)}")
