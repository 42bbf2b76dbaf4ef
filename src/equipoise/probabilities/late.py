"""Labels that come after the chunks that they are of, and what they say about the chunks since."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.calibration.labels import TAIL, TAIL_WIDTH, prediction_powered
from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.scalars import NINETY, log_odds, share_of
from equipoise.errors import ForgottenRequestError, OptionError

AWAITED_ROWS = 2**20
"""The rows whose labels are awaited, or more where the last chunk has more; older chunks are forgotten."""

KEEPS, TAIL_KEEPS = 0.5, 0.9
"""The correlation of the errors of two estimates without labels, one chunk after the other; where they are of
the tail, it is the second: what makes a model sure and wrong lasts."""

SPREAD_OF_TAIL = 0.3
"""The least standard deviation of errors of the tail: about that of an accuracy that may be anything."""

NEAR = 1.85
"""Half of an interval without labels as standard deviations of its error: with the tail, that is 90 %."""

NO_CLASS = -1
"""In place of the class of a row of NaN, and of a label that has not come."""

_TINY = 1e-12
_COUNT = 30  # the chunks whose labels count: an older one would count for less than one in 10,000


@dataclass(frozen=True, eq=False)
class Awaiting:
    """A chunk that labels may still come for.

    Attributes:
        first: the number of the first row.
        free: the accuracy estimated without labels.
        right: the calibrated probability that a row names the right class, (N); 0 for rows of NaN.
        classes: that rows name, (N); `NO_CLASS` for rows of NaN.
        labels: that have come, (N); `NO_CLASS` for others.
    """

    first: int
    free: Estimate
    right: Tensor
    classes: Tensor
    labels: Tensor

    @property
    def ids(self) -> range:
        """The numbers of the rows."""
        return range(self.first, self.first + len(self.labels))

    @property
    def deviation(self) -> float:
        """The standard deviation of the error without labels, where it is not of the tail."""
        return (self.free.high - self.free.low) / 2 / NEAR

    @property
    def labelled(self) -> Tensor:
        """Which rows have a label and a class, (N)."""
        return (self.labels != NO_CLASS) & (self.classes != NO_CLASS)

    @cached_property
    def by_labels(self) -> tuple[float, float]:
        """The accuracy by its labels, and the variance of that; infinite without labels.

        `prediction_powered`, with the calibrated probabilities as scores. The labels say all of the rows that
        they are of: where n of N rows have one, the variance is (1 − n / N) of that.
        """
        own, known = self.labelled, self.classes != NO_CLASS
        rows, labels = int(known.sum()), int(own.sum())
        if not labels:
            return math.nan, math.inf
        scores, hits = self.right.double(), self.labels == self.classes
        mean = scores[known].mean()
        value, variance = prediction_powered(hits[own].double(), scores[own], mean, rows)
        return float(value), float(variance) * (1 - labels / rows)


def label_rows(chunks: Sequence[Awaiting], ids: npt.NDArray[np.int64], labels: Tensor) -> list[Awaiting]:
    """The chunks with labels for the rows with these numbers; a later label of a row replaces an earlier one.

    ForgottenRequestError where a row is of no chunk.
    """
    if not chunks:
        raise ForgottenRequestError("expected labels of rows of a chunk, got them before the first `update`")
    known = range(chunks[0].first, chunks[-1].ids.stop)
    wrong = ids[(ids < known.start) | (ids >= known.stop)]
    if len(wrong):
        raise ForgottenRequestError(
            f"expected ids of rows whose labels are awaited, {known.start} to {known.stop - 1}, got "
            f"{wrong[0]}: older chunks are forgotten when more than {AWAITED_ROWS:,} rows have come since"
        )
    after = []
    for chunk in chunks:
        own = (ids >= chunk.ids.start) & (ids < chunk.ids.stop)
        if not own.any():
            after.append(chunk)
            continue
        found = chunk.labels.numpy().copy()
        found[ids[own] - chunk.first] = labels.numpy()[own]  # of a number that comes twice, the last counts
        after.append(replace(chunk, labels=torch.from_numpy(found)))
    return after


def awaited(chunks: Sequence[Awaiting]) -> list[Awaiting]:
    """The newest chunks, of `AWAITED_ROWS` rows together at most, and the last one."""
    rows = 0
    for at in reversed(range(len(chunks))):
        rows += len(chunks[at].labels)
        if rows > AWAITED_ROWS and at + 1 < len(chunks):
            return list(chunks[at + 1 :])
    return list(chunks)


def row_numbers(ids: object) -> npt.NDArray[np.int64]:
    """The numbers of rows as an array; OptionError unless they are whole numbers."""
    given = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        raise OptionError(f"expected ids as a list of whole numbers, got {given.dtype} {given.shape}")
    return given.astype(np.int64)


class _Error(NamedTuple):
    """What labels say of the error of an estimate, in standard deviations that it has without labels.

    Attributes:
        mean: of the error.
        spread: its variance, 1 without labels.
    """

    mean: float
    spread: float

    def later(self, keeps: float) -> "_Error":
        """One chunk later, where errors have the correlation `keeps`."""
        return _Error(keeps * self.mean, 1 - keeps**2 * (1 - self.spread))

    def observed(self, error: float, variance: float) -> "_Error":
        """With an error that labels say, of some variance: Kalman's filter (1960)."""
        gain = self.spread / (self.spread + variance)
        return _Error(self.mean + gain * (error - self.mean), (1 - gain) * self.spread)

    def surprise(self, error: float, variance: float) -> float:
        """The negative logarithm of the density of such an error, up to a constant."""
        total = self.spread + variance
        return ((error - self.mean) ** 2 / total + math.log(total)) / 2


def with_labels(chunks: Sequence[Awaiting]) -> Estimate:
    """The accuracy of the last chunk, with the labels of all of them.

    The error of an estimate without labels is e_t = σ_t · u_t, with σ_t from half of its interval, and u_t a
    standard normal that keeps from chunk to chunk: u_t = ρ · u_(t-1) + √(1 − ρ²) · ε, ρ = `KEEPS`. With the
    chance `TAIL` it is of the tail instead, as no interval knows every shift: then σ is at least
    `SPREAD_OF_TAIL` and `TAIL_WIDTH` times as large, and ρ is `TAIL_KEEPS`. Labels observe the
    error (`Awaiting.by_labels`). With m and P the mean and variance of u_t before its labels, which
    say y with a variance s²,

        K = P σ² / (P σ² + s²),   m + K · ((y − free) / σ − m),   (1 − K) · P,

    Kalman's filter (1960), for either kind, and the odds of the tail are multiplied by that of the densities
    of y; from chunk to chunk its chance returns to `TAIL` as m does to 0. So few labels change little where
    they agree with the estimate, and labels that contradict it are believed soon. The accuracy is the mean of
    both kinds, its interval has 5 % of their distribution on each side. Without labels it is the estimate
    without labels, to the bit.
    """
    near, far, odds, apart = _Error(0.0, 1.0), _Error(0.0, 1.0), log_odds(TAIL), False
    for chunk in chunks[-_COUNT:]:
        near, far = near.later(KEEPS), far.later(TAIL_KEEPS)
        odds = log_odds(TAIL + TAIL_KEEPS * (share_of(odds) - TAIL))
        value, variance = chunk.by_labels
        if math.isinf(variance):
            continue
        error, sigma, tau = value - chunk.free.value, chunk.deviation, _of_tail(chunk)
        apart = abs(error) > NINETY * (sigma + math.sqrt(variance))
        of_near, of_far = (error / sigma, variance / sigma**2), (error / tau, variance / tau**2)
        odds += near.surprise(*of_near) + math.log(sigma) - far.surprise(*of_far) - math.log(tau)
        near, far = near.observed(*of_near), far.observed(*of_far)
    last, free, tail = chunks[-1], chunks[-1].free, share_of(odds)
    if near.spread == 1:
        return free
    parts = [
        (share, free.value + scale * part.mean, max(scale * math.sqrt(part.spread), _TINY))
        for share, scale, part in ((1 - tail, last.deviation, near), (tail, _of_tail(last), far))
    ]
    value = sum(share * mean for share, mean, _ in parts)
    value, low, high = (
        min(max(each, 0.0), 1.0) for each in (value, _below(parts, 0.05), _below(parts, 0.95))
    )
    return Estimate(value, min(low, value), max(high, value), free.inside and not apart)


def _of_tail(chunk: Awaiting) -> float:
    return max(SPREAD_OF_TAIL, TAIL_WIDTH * chunk.deviation)


def _below(parts: Sequence[tuple[float, float, float]], share: float) -> float:
    """The number that a share of a mixture of normal distributions is below, by halving an interval.

    Each part has its share, its mean and its standard deviation.
    """
    low, high = -1.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        below = sum(own * (1 + math.erf((middle - mean) / (s * math.sqrt(2)))) / 2 for own, mean, s in parts)
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2
