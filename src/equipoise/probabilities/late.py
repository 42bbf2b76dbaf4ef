"""Labels that come after the chunks that they are of, and what they say about the chunks since."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.calibration.labels import prediction_powered
from equipoise.calibration.rehearsal import Estimate
from equipoise.errors import ForgottenRequestError, OptionError

AWAITED_ROWS = 2**20
"""The rows whose labels are awaited, or more where the last chunk has more; older chunks are forgotten."""

KEEPS = 0.5
"""The correlation of the errors of two estimates without labels, one chunk after the other."""

NO_CLASS = -1
"""In place of the class of a row of NaN, and of a label that has not come."""

_NINETY = 1.645
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
        """The standard deviation that the interval without labels stands for."""
        return (self.free.high - self.free.low) / 2 / _NINETY

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


def with_labels(chunks: Sequence[Awaiting]) -> Estimate:
    """The accuracy of the last chunk, with the labels of all of them.

    The error of an estimate without labels is e_t = σ_t · u_t, with σ_t from half of its interval, and u_t a
    standard normal that keeps from chunk to chunk: u_t = ρ · u_(t-1) + √(1 − ρ²) · ε, ρ = `KEEPS`. Labels
    observe it (`Awaiting.by_labels`). So with m and P the mean and variance of u_t before its labels, which
    say y with a variance s²,

        K = P σ² / (P σ² + s²),   m + K · ((y − free) / σ − m),   (1 − K) · P,

    Kalman's filter (1960), and the accuracy is free + σ · m, its interval 1.645 · σ · √P. Few labels have a
    large s² and change little: the mean squared error is that without labels at most, where the interval
    without labels is honest. Without labels it is the estimate without labels, to the bit.
    """
    mean, spread, apart = 0.0, 1.0, False
    for chunk in chunks[-_COUNT:]:
        mean, spread = KEEPS * mean, 1 - KEEPS**2 * (1 - spread)
        value, variance = chunk.by_labels
        if math.isinf(variance):
            continue
        error, variance = (value - chunk.free.value) / chunk.deviation, variance / chunk.deviation**2
        apart = abs(error) > _NINETY * (1 + math.sqrt(variance))
        gain = spread / (spread + variance)
        mean, spread = mean + gain * (error - mean), (1 - gain) * spread
    free, sigma = chunks[-1].free, chunks[-1].deviation
    if spread == 1:
        return free
    value = min(max(free.value + sigma * mean, 0.0), 1.0)
    half = _NINETY * sigma * math.sqrt(spread)
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), free.inside and not apart)
