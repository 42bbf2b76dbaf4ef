"""Methods with scores made by hand, as `recommend` compares them."""

from typing import Literal

import torch

from equipoise.recommendation.candidates import Candidate
from equipoise.recommendation.choice import Form, ShiftSums

SHIFTS, SAMPLES = 10, 100


def form(
    name: str,
    accuracies: list[float],
    nll: float,
    seconds: float = 1.0,
    tempering: Literal["none", "rehearsed"] = "none",
) -> Form:
    """A method with an accuracy on each shift, and about the same loss on all of them."""
    hits = SAMPLES * torch.tensor(accuracies, dtype=torch.float64)
    losses = SAMPLES * (nll + 0.01 * torch.arange(SHIFTS, dtype=torch.float64))
    sums = ShiftSums(torch.full((SHIFTS,), float(SAMPLES), dtype=torch.float64), hits, losses, 0.1)
    return Form(Candidate(name), tempering, sums, seconds)


UNEVEN = [0.1 * place for place in range(SHIFTS)]
SOURCE = form("source", UNEVEN, nll=1.0)


def moved(by: list[float]) -> list[float]:
    """The source model's accuracies, each moved."""
    return [min(1.0, max(0.0, base + each)) for base, each in zip(UNEVEN, by, strict=True)]
