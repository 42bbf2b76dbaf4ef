"""Counts of a chunk: how often each class is named with which confidence, and what else may be right."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.estimators.confidence import isotonic
from equipoise.estimators.inputs import Doubles

CELLS = 1024
"""Steps of confidence; step i has 64 · ln(1 / (1 - confidence)) from i to i + 1. So .999 and .9999 differ."""

SHARED = 200
"""The rows that the curve of all classes counts for, beside those that a class of its own was named in."""

ENDS = 20
"""The least sure rows that count as equally sure, and the surest: one mistake among few is not a curve."""

BLOCK = 2**18
"""The numbers that are worked on at a time, few enough for the cache of a core."""

_PER_NAT = 64
_EDGE = 1e-3
_ASIDE = 10  # mistakes as the probabilities say, beside those that were seen


class Named(NamedTuple):
    """The class that each row names, and how surely.

    Attributes:
        classes: the most probable class, (N); of equal ones the first.
        steps: that of its probability among `CELLS`, (N).
    """

    classes: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Calibration:
    """What held-out labels say about rows that name a class with some confidence.

    Attributes:
        right: how often the class is right, (C, CELLS): the rising function of confidence with the least
            squared error (`equipoise.estimators.confidence.isotonic`), of all rows, which count for `SHARED`,
            and of the rows that name the class, where these are more than 2 · `ENDS`.
        wrong: how much more often class k is right where class c was named by mistake than the other
            probabilities say, (C, C).
    """

    right: Tensor
    wrong: Tensor


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of a chunk.

    Attributes:
        rows: with numbers.
        steps: the rows that name class c in each step of confidence, (C, CELLS).
        others: the expected rows that name class c where class k is right, up to a factor for each c; (C, C),
            0 on the diagonal.
    """

    rows: int
    steps: Tensor
    others: Tensor

    def expected(self, calibration: Calibration) -> float:
        """The expected share of rows that name the right class."""
        return float((self.steps * calibration.right).sum()) / self.rows


def named(values: Tensor) -> Named:
    """The class that each row of probabilities (N, C) names."""
    confidence, classes = values.max(1)
    doubt = (1 - confidence).clamp(min=math.exp(-CELLS / _PER_NAT))
    return Named(classes, (doubt.log() * -_PER_NAT).long().clamp(0, CELLS - 1))


def tally(values: Tensor, calibration: Calibration) -> tuple[Tally, Named]:
    """The counts of probabilities (N, C), and the class that each row names."""
    classes = values.shape[1]
    steps = torch.zeros(classes * CELLS, dtype=torch.float64)
    others = torch.zeros(classes, classes, dtype=torch.float64)
    found = []
    for block in values.split(max(1, BLOCK // classes)):
        own = named(block)
        at = own.classes * CELLS + own.steps
        steps += torch.bincount(at, minlength=classes * CELLS)
        likely = block.gather(1, own.classes[:, None]).squeeze(1)
        doubt = (1 - calibration.right.flatten()[at]).to(block) / (1 - likely).clamp(min=1e-7)
        of_block = torch.zeros_like(others, dtype=block.dtype)
        others += of_block.index_add_(0, own.classes, block * doubt[:, None])
        found.append(own)
    others.fill_diagonal_(0)
    joined = Named(torch.cat([own.classes for own in found]), torch.cat([own.steps for own in found]))
    return Tally(len(values), steps.view(classes, CELLS), others), joined


def calibrate(values: Tensor, labels: Tensor) -> tuple[Calibration, Tally]:
    """The calibration of held-out probabilities (N, C) with labels (N), and their counts."""
    classes = values.shape[1]
    own = named(values)
    hits = (own.classes == labels).double().numpy()
    steps = own.steps.double().numpy()
    shared = _curve(steps, hits)
    right = shared.repeat(classes, 1)
    often = own.classes.bincount(minlength=classes) > 2 * ENDS
    for each in often.nonzero().flatten().tolist():
        rows = (own.classes == each).numpy()
        curve = _curve(steps[rows], hits[rows])
        share = rows.sum() / (rows.sum() + SHARED)
        right[each] = share * curve + (1 - share) * shared
    right = right.clamp(_EDGE, 1 - _EDGE)
    counts, _ = tally(values, Calibration(right, torch.ones(classes, classes, dtype=torch.float64)))
    met = torch.bincount(own.classes * classes + labels, minlength=classes**2).view(classes, classes).double()
    met.fill_diagonal_(0)
    likely = directions(counts.others)
    seen = met.sum(1, keepdim=True)
    wrong = (met + _ASIDE * likely) / ((seen + _ASIDE) * likely).clamp(min=1e-12)
    return Calibration(right, wrong.where(likely > 0, 1.0)), counts


def _curve(steps: Doubles, hits: Doubles) -> Tensor:
    """The isotonic regression of hits at each step, (CELLS); the `ENDS` least sure rows are alike."""
    if len(steps) > 2 * ENDS:
        ordered = np.sort(steps)
        steps = steps.clip(ordered[ENDS - 1], ordered[-ENDS])
    return torch.from_numpy(isotonic(steps, hits)(np.arange(CELLS, dtype=np.float64)))


def directions(others: Tensor) -> Tensor:
    """Each row over its sum, (C, C); even over the other classes where it has none."""
    classes = len(others)
    even = (1 - torch.eye(classes, dtype=others.dtype)) / max(1, classes - 1)
    total = others.sum(1, keepdim=True)
    return torch.where(total > 0, others / total.clamp(min=1e-300), even)


def moved_odds(right: Tensor, offset: float) -> Tensor:
    """Probabilities whose odds are multiplied by e^offset."""
    return torch.sigmoid(right.logit() + offset)


def offset_for(counts: Tally, calibration: Calibration, accuracy: float) -> float:
    """The offset of the logits at which the expected share of right rows is the accuracy.

    By halving an interval: the share rises with the offset.
    """
    some = counts.steps > 0
    weights, logits = counts.steps[some], calibration.right[some].logit()
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        above = float((weights * torch.sigmoid(logits + middle)).sum()) / counts.rows > accuracy
        low, high = (low, middle) if above else (middle, high)
    return (low + high) / 2
