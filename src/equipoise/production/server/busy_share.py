"""The share of the recent time for which a thread has worked."""

import math

SPAN = 1.0
"""Seconds over which the share is averaged."""


class BusyShare:
    """An exponential average of work over work and waiting; 0 at the start.

    Attributes:
        value: the share, from 0 to 1.
    """

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, waited: float, worked: float) -> None:
        """Count seconds of waiting, and the seconds of work after them."""
        passed = waited + worked
        if passed > 0:
            kept = math.exp(-passed / SPAN)
            self.value = kept * self.value + (1 - kept) * worked / passed
