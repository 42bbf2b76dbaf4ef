"""The remembered samples as a pandas frame."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.errors import MissingExtraError
from equipoise.production.monitor.samples import UNKNOWN, Rows, row_type

if TYPE_CHECKING:
    import pandas as pd


def samples_frame(
    rows: Rows | None, requests: Sequence[tuple[str, int, int]], first: int, stream: str
) -> "pd.DataFrame":
    """A frame with a row for each sample; see `Monitor.frame`.

    Args:
        rows: the samples; None before the first.
        requests: id, number of the first row and number of rows of each request.
        first: the number of the first of `rows`.
        stream: the name of the stream.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("frame() needs pandas: pip install 'equipoise[bench]'") from error
    rows = np.zeros(0, row_type(0)) if rows is None else rows
    ids = np.full(len(rows), None, dtype=object)
    for name, start, count in requests:
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
