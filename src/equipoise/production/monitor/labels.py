"""Labels that come late: the rows that each request has, and the checks of what came."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from equipoise.errors import OptionError
from equipoise.production.monitor.samples import UNKNOWN, Rows


class Requests:
    """The rows of each request that labels may still come for."""

    def __init__(self, ranges: Sequence[tuple[str, int, int]] = ()) -> None:
        self._ranges = {name: (first, rows) for name, first, rows in ranges}

    def add(self, name: str, first: int, rows: int) -> None:
        """Remember a request by the number of its first row; one of the same name is forgotten."""
        self._ranges.pop(name, None)
        self._ranges[name] = (first, rows)

    def forget_before(self, first: int) -> None:
        """Forget the requests that have a row before `first`."""
        while self._ranges and next(iter(self._ranges.values()))[0] < first:
            self._ranges.pop(next(iter(self._ranges)))

    def get(self, name: str) -> tuple[int, int] | None:
        """The number of the first row of a request, and how many there are."""
        return self._ranges.get(name)

    def listed(self) -> list[tuple[str, int, int]]:
        """All of them, oldest first."""
        return [(name, first, rows) for name, (first, rows) in self._ranges.items()]


def checked_labels(labels: Any, count: int, classes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Labels as an array; OptionError unless they are `count` whole numbers below `classes`."""
    try:
        target = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"expected labels as whole numbers, got {labels!r}") from error
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise OptionError(f"expected labels as whole numbers, got {target.dtype}")
    if target.shape != (count,):
        raise OptionError(f"expected {count} labels, one for each row, got {tuple(target.shape)}")
    if count and not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise OptionError(
            f"expected labels in 0..{classes - 1}, got {int(target.min())}..{int(target.max())}"
        )
    return target.numpy().astype(np.int64)


def votes(rows: Rows) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits that choose the classes of the source model, which alone are remembered; NaN where unknown."""
    chosen = np.zeros_like(rows["logits"])
    chosen[np.arange(len(rows)), rows["source"]] = 1
    chosen[rows["source"] == UNKNOWN] = np.nan
    return chosen
