"""The last samples of a stream, one row each in a structured array, and the labels that come late."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.record import Step
from equipoise.errors import BatchError, BatchTypeError, MissingExtraError

Rows = NDArray[Any]
"""A structured array of `row_type`."""

UNKNOWN = -1
"""A class, a label or a flag that there is not."""

_LEAST = np.float32(-1e30)


def row_type(classes: int) -> np.dtype[Any]:
    """The fields of a row.

    time: seconds since 1970. logits: of the answer; NaN where there was none. predicted: the class; -1 where
    there was no answer. source: the class that the source model chose; -1 where it was not asked. label: -1
    until it comes. confidence: max p. entropy: in bits. accuracy, low, high, inside, source_accuracy and
    temperature: those of the step that answered; NaN, and -1 for `inside`, where there are none.
    """
    return np.dtype(
        [
            ("time", "f8"),
            ("logits", "f4", (classes,)),
            ("predicted", "i4"),
            ("source", "i4"),
            ("label", "i4"),
            ("confidence", "f4"),
            ("entropy", "f4"),
            ("accuracy", "f8"),
            ("low", "f8"),
            ("high", "f8"),
            ("inside", "i1"),
            ("source_accuracy", "f8"),
            ("temperature", "f8"),
        ]
    )


def rows_of(logits: Tensor, step: Step | None, time: float) -> Rows:
    """The rows of a batch of (N, C) logits, from the record of its step.

    A row of logits that has NaN, or no finite maximum, is no answer. The record of another batch (of another
    number of samples) gives no classes of the source model.
    """
    answers = _matrix(logits)
    rows = np.zeros(len(answers), row_type(answers.shape[1]))
    rows["time"], rows["label"] = time, UNKNOWN
    rows["predicted"] = predicted = _classes(answers)
    answers[predicted == UNKNOWN] = np.nan
    rows["logits"] = answers
    behind = answers - answers.max(1, keepdims=True)
    odds = np.exp(behind)
    total = odds.sum(1)
    rows["confidence"] = 1 / total
    # H = ln Σ e^z − Σ p z, with 0 · (−inf) = 0
    rows["entropy"] = (np.log(total) - (odds * np.maximum(behind, _LEAST)).sum(1) / total) / np.log(2)
    source = None if step is None else step.source_logits
    rows["source"] = UNKNOWN
    if source is not None and len(source) == len(answers):
        rows["source"] = np.where(predicted == UNKNOWN, UNKNOWN, _classes(_matrix(source)))
    estimate = None if step is None else step.accuracy
    theirs_estimate = None if step is None else step.source_accuracy
    for name in ("value", "low", "high"):
        rows[{"value": "accuracy"}.get(name, name)] = np.nan if estimate is None else getattr(estimate, name)
    rows["inside"] = UNKNOWN if estimate is None else int(estimate.inside)
    rows["source_accuracy"] = np.nan if theirs_estimate is None else theirs_estimate.value
    rows["temperature"] = np.nan if step is None or step.temperature is None else step.temperature
    return rows


def _matrix(logits: Any) -> NDArray[np.float32]:
    """A copy of logits as a matrix in single precision."""
    if not isinstance(logits, Tensor):
        raise BatchTypeError(f"expected logits as a tensor, got {type(logits).__name__}")
    if logits.ndim != 2 or not logits.shape[1]:
        raise BatchError(f"expected logits of shape (N, C), got {tuple(logits.shape)}")
    matrix: NDArray[np.float32] = logits.detach().to("cpu", torch.float32, copy=True).numpy()
    return matrix


def _classes(answers: NDArray[np.float32]) -> NDArray[Any]:
    """The most probable classes; -1 where there is no finite maximum."""
    return np.where(np.isfinite(answers.max(1)), answers.argmax(1), UNKNOWN)


class RecentSamples:
    """The last rows of a stream, at most `limit`, in one block of memory that grows up to 5/4 of that.

    Attributes:
        limit: the most rows that are held.
        first: the number of the oldest row held, counted from the start of the stream.
    """

    def __init__(self, limit: int, rows: Rows, first: int = 0) -> None:
        self.limit, self.first = limit, first
        self._block, self._start, self._end = rows.copy(), 0, len(rows)

    @property
    def rows(self) -> Rows:
        """The rows, oldest first: a view, in which labels can be written."""
        return self._block[self._start : self._end]

    @property
    def last(self) -> int:
        """The number that the next row will have."""
        return self.first + self._end - self._start

    def append(self, fresh: Rows) -> Rows:
        """Add rows; returns a copy of those that were forgotten for them."""
        surplus = max(0, self._end - self._start + len(fresh) - self.limit)
        old = min(surplus, self._end - self._start)
        forgotten = fresh[: surplus - old]
        if old:
            forgotten = np.concatenate([self.rows[:old], forgotten])
        fresh = fresh[surplus - old :]
        self._start += old
        self.first += surplus
        if self._end + len(fresh) > len(self._block):
            self._make_room(len(fresh))
        self._block[self._end : self._end + len(fresh)] = fresh
        self._end += len(fresh)
        return forgotten

    def _make_room(self, fresh: int) -> None:
        """Move the rows to the front, of a larger block where this one is too small."""
        held = self.rows.copy()
        needed = len(held) + fresh
        size = min(2 * needed, self.limit + self.limit // 4 + 1)
        if len(self._block) < size:
            self._block = np.zeros(size, held.dtype)
        self._block[: len(held)] = held
        self._start, self._end = 0, len(held)


def votes(rows: Rows) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits that choose the classes of the source model, which alone are remembered; NaN where unknown."""
    chosen = np.zeros_like(rows["logits"])
    chosen[np.arange(len(rows)), rows["source"]] = 1
    chosen[rows["source"] == UNKNOWN] = np.nan
    return chosen


if TYPE_CHECKING:
    import pandas as pd


def samples_frame(
    rows: Rows | None, requests: Mapping[str, tuple[int, int]], first: int, stream: str
) -> "pd.DataFrame":
    """A frame with a row for each sample; see `Monitor.frame`.

    Args:
        rows: the samples; None before the first.
        requests: the number of the first row and the number of rows of each request, by id.
        first: the number of the first of `rows`.
        stream: the name of the stream.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("frame() needs pandas: pip install 'equipoise[bench]'") from error
    rows = np.zeros(0, row_type(0)) if rows is None else rows
    ids = np.full(len(rows), None, dtype=object)
    for name, (start, count) in requests.items():
        ids[start - first : start - first + count] = name

    shifted = rows["logits"] - rows["logits"].max(1, keepdims=True, initial=-np.inf)
    weights = np.exp(shifted)
    probabilities = weights / weights.sum(1, keepdims=True)
    return pd.DataFrame(
        {
            "timestamp": pd.to_datetime(rows["time"], unit="s", utc=True),
            "stream": stream,
            "request": ids,
            "prediction": _nullable(pd, rows["predicted"]),
            "confidence": rows["confidence"],
            "entropy": rows["entropy"],
            "source_prediction": _nullable(pd, rows["source"]),
            "target": _nullable(pd, rows["label"]),
            "estimated_accuracy": rows["accuracy"],
            "temperature": rows["temperature"],
            **{f"probability_{index}": column for index, column in enumerate(probabilities.T)},
        }
    )


def _nullable(pd: Any, values: Rows) -> Any:
    """Classes as whole numbers that may be missing."""
    return pd.arrays.IntegerArray(values.astype(np.int64), values == UNKNOWN)
