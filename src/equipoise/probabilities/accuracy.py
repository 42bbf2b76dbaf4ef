"""The accuracy of a chunk from its counts, and how far these are from the held-out ones."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.scalars import NINETY, log_odds, share_of
from equipoise.probabilities.tally import Calibration, Tally

GROUPS = 20
"""Groups of confidence, as many held-out rows in each, that are compared with the groups of a chunk."""

FADE, DISCOUNT = 0.5, 0.25
"""The distance over which a gain of accuracy loses belief, and what a distance of 1 takes off the logit."""

SPREAD, LEAST_HALF = 1.7, 0.2
"""Half of the interval, as a logit, at a distance of 1, where it grows with the root, and the least."""

NEAR_HELD_OUT = 0.1
"""The distance up to which a chunk counts as near to held-out rows."""

CERTAIN = 4.0
"""The distance, in standard deviations of equal distributions, that is drift; it is .01 at least, too."""

_LEAST_DRIFT = 0.01
_EDGE = 1e-3


class Distance(NamedTuple):
    """How far the answers of a chunk are from held-out ones, in nats.

    Attributes:
        confidence: of the shares of the groups of confidence (`kullback_leibler`).
        classes: of the shares of the classes named.
        noise: the standard deviation of both together where nothing has changed.
    """

    confidence: float
    classes: float
    noise: float

    @property
    def both(self) -> float:
        """The sum."""
        return self.confidence + self.classes

    @property
    def drift(self) -> bool:
        """Whether the distance is more than chance makes, and enough to matter."""
        return self.both > max(_LEAST_DRIFT, CERTAIN * self.noise)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What is known of held-out rows.

    Attributes:
        calibration: of the classes that rows name.
        counts: of the rows.
        right: the rows that name the right class.
        confidence: the mean of the largest probability.
    """

    calibration: Calibration
    counts: Tally
    right: int
    confidence: float

    @property
    def at_rest(self) -> float:
        """The logit of the accuracy where nothing has changed.

        That of the held-out rows, a, drawn towards their mean confidence c, which is the accuracy of a
        calibrated model: with δ = logit a - logit c and s² = 1 / (n a (1 - a)), the variance of logit a,

            logit a - δ · s² / (s² + δ²).

        That is half of a standard error at most, at δ = s: a larger δ is no chance, and is kept (as James and
        Stein, 1961, draw means together).
        """
        share = self.right / self.counts.rows
        variance = 1 / (self.counts.rows * max(share * (1 - share), _EDGE))
        apart = log_odds(share, _EDGE) - log_odds(self.confidence, _EDGE)
        return log_odds(share, _EDGE) - apart * variance / (variance + apart**2)

    def groups(self) -> Tensor:
        """The group of each step of confidence, (CELLS)."""
        mass = self.counts.steps.sum(0)
        below = (mass.cumsum(0) - mass / 2) / mass.sum()
        return (below * GROUPS).long().clamp(max=GROUPS - 1)

    def distance(self, counts: Tally) -> Distance:
        """The distance of a chunk."""
        groups = self.groups()
        confidences = [
            torch.zeros(GROUPS, dtype=torch.float64).index_add_(0, groups, each.steps.sum(0))
            for each in (counts, self.counts)
        ]
        classes = [each.steps.sum(1) for each in (counts, self.counts)]
        scale = (1 / counts.rows + 1 / self.counts.rows) / 2
        parts = [kullback_leibler(*each) - scale * (len(each[0]) - 1) for each in (confidences, classes)]
        noise = scale * math.sqrt(2 * (GROUPS + len(classes[0]) - 2))
        return Distance(max(0.0, parts[0]), max(0.0, parts[1]), noise)

    def accuracy(self, counts: Tally, distance: Distance) -> Estimate:
        """The accuracy of a chunk at a distance.

        In logits:

            a₀ + min(g, 0) + max(g, 0) · e^(−d / FADE) − DISCOUNT · d,

        with a₀ the accuracy `at_rest`, g what calibrated confidence gains on held-out rows (the mean of
        `Calibration.right`, as a logit, less the same of held-out rows), and d the distance of confidences.
        Less confidence is believed. More is not, the further the chunk is from held-out rows: easier rows
        make a model surer and better, but so does new data make it surer and worse. And where the answers
        have changed, so, as a rule, has what the labels are. The discount ends at chance, 1 / C.

        Half of the 90 % interval is √(LEAST_HALF² + SPREAD² · (d + classes) + z² / (n a (1 − a)) + that of
        held-out rows), z = 1.645.
        """
        right, at_rest = self.calibration, self.at_rest
        gain = log_odds(counts.expected(right), _EDGE) - log_odds(self.counts.expected(right), _EDGE)
        d = distance.confidence
        believed = at_rest + min(gain, 0.0) + max(gain, 0.0) * math.exp(-d / FADE)
        value = max(believed - DISCOUNT * d, min(believed, -math.log(len(counts.steps) - 1)))
        sampled = 0.0
        for logit, rows in ((value, counts.rows), (at_rest, self.counts.rows)):
            share = share_of(logit)
            sampled += NINETY**2 / (rows * share * (1 - share) + 1)
        half = math.sqrt(LEAST_HALF**2 + SPREAD**2 * distance.both + sampled)
        low, high = share_of(value - half), share_of(value + half)
        return Estimate(share_of(value), low, high, distance.both <= NEAR_HELD_OUT)


def kullback_leibler(counts: Tensor, others: Tensor) -> float:
    """Σ p ln(p / q) of the shares of two histograms, with half a row more in each group."""
    p, q = ((each + 0.5) / (each + 0.5).sum() for each in (counts, others))
    return float((p * (p / q).log()).sum())
