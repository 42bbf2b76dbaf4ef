"""Shares as plain numbers of the host: their logits, and what makes a 90 % interval."""

import math

NINETY = 1.645
"""Half of the 90 % interval of a normal distribution, in standard deviations."""


def log_odds(share: float, edge: float = 1e-7) -> float:
    """ln(p / (1 − p)) of a share, which counts as `edge` from 0 and 1 at least."""
    inner = min(max(share, edge), 1 - edge)
    return math.log(inner / (1 - inner))


def share_of(value: float) -> float:
    """The share with these log odds; the inverse of `log_odds`."""
    return (1 + math.tanh(value / 2)) / 2
