"""A window of the last samples that came one by one, for layers that need company to normalise."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.errors import StateError
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import SAMPLES, part, prefixed


def slide(kept: Mapping[str, Tensor], batch: Batch, size: int) -> tuple[Batch, dict[str, Tensor]]:
    """A single sample together with those before it, at most `size`, itself last; and what to keep of them.

    Samples of another shape cannot be in one batch: the window starts anew with them.
    """
    news, olds = batch.samples(), part(kept, SAMPLES)
    fitting = _fits(olds, news)
    window = {n: torch.cat([olds[n], new])[-size:] if fitting else new.clone() for n, new in news.items()}
    return batch.with_samples(window), prefixed(SAMPLES, window)


def rows_before(kept: Mapping[str, Tensor], batch: Batch) -> int:
    """How many samples the window has that a single one can join."""
    news, olds = batch.samples(), part(kept, SAMPLES)
    return len(next(iter(olds.values()))) if olds and _fits(olds, news) else 0


def _fits(olds: Mapping[str, Tensor], news: Mapping[str, Tensor]) -> bool:
    return olds.keys() == news.keys() and all(
        olds[name].shape[1:] == new.shape[1:] and olds[name].dtype == new.dtype for name, new in news.items()
    )


def check_window(kept: Mapping[str, Tensor], size: int) -> None:
    """Raise StateError unless the samples of a state are those of a window of this size."""
    sizes = {tensor.shape[:1] for tensor in part(kept, SAMPLES).values()}
    if len(sizes) > 1 or any(not 0 < sum(rows) <= size for rows in sizes):
        raise StateError(f"expected a window of 1 to {size} samples, got {sorted(map(tuple, sizes))}")
