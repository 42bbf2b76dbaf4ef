"""The curves of a stream: a row after each batch, of which older ones are thinned."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_LIMIT = 512
"""The most rows that are held: beyond it, every second row of the older half is dropped."""

ROW_COLUMNS = (
    "index",
    "time",
    "samples",
    "accuracy",
    "low",
    "high",
    "inside",
    "source_accuracy",
    "confidence",
    "temperature",
    "entropy",
    "agreement",
)
"""The numbers of a row; the shares of the classes follow them."""

_WHOLE = ("index", "samples")


class History:
    """Rows of numbers, oldest first, each (columns + classes); NaN where there is none."""

    def __init__(self, rows: NDArray[np.float64] | None = None) -> None:
        self._rows: list[NDArray[np.float64]] = [] if rows is None else list(rows)

    def add(self, numbers: dict[str, float], shares: NDArray[np.float64]) -> None:
        """Add a row from the numbers that there are."""
        known = [numbers.get(name, np.nan) for name in ROW_COLUMNS]
        self._rows.append(np.concatenate([known, shares]))
        if len(self._rows) > ROW_LIMIT:
            half = ROW_LIMIT // 2
            self._rows = self._rows[:half:2] + self._rows[half:]

    def since(self, index: int) -> list[dict[str, Any]]:
        """The rows after an index as the page takes them: None where there is no number."""
        return [_row(numbers) for numbers in self._rows if numbers[0] > index]

    def table(self) -> NDArray[np.float64]:
        """All rows as one array, (rows, columns + classes); there must be one."""
        return np.stack(self._rows)


def _row(numbers: NDArray[np.float64]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: None if np.isnan(value) else float(value)
        for name, value in zip(ROW_COLUMNS, numbers, strict=False)
    }
    row |= {name: int(row[name]) for name in _WHOLE}
    row["inside"] = None if row["inside"] is None else bool(row["inside"])
    shares = numbers[len(ROW_COLUMNS) :]
    row["histogram"] = None if np.isnan(shares).any() else shares.tolist()
    return row
