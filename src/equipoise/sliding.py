"""A window of the last samples that came one by one, for layers that need company to normalise."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.batch import Batch

PREFIX = "samples."


def slide(kept: Mapping[str, Tensor], batch: Batch, size: int) -> tuple[Batch, dict[str, Tensor]]:
    """A single sample together with those before it, at most `size`, itself last; and what to keep of them.

    Samples of another shape cannot be in one batch: the window starts anew with them.
    """
    news = batch.samples()
    olds = {name.removeprefix(PREFIX): t for name, t in kept.items() if name.startswith(PREFIX)}
    fitting = olds.keys() == news.keys() and all(
        olds[name].shape[1:] == new.shape[1:] and olds[name].dtype == new.dtype for name, new in news.items()
    )
    window = {n: torch.cat([olds[n], new])[-size:] if fitting else new.clone() for n, new in news.items()}
    return batch.with_samples(window), {PREFIX + name: tensor for name, tensor in window.items()}
