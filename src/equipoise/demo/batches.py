"""Cut a set of images into batches in random order."""

import torch
from torch import Tensor


def shuffled_batches(count: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The indices 0..count-1 in random order, `batch_size` at a time."""
    return torch.split(torch.randperm(count, generator=generator), batch_size)


def batch_count(count: int, batch_size: int) -> int:
    """How many batches that makes; the last may be smaller."""
    return -(-count // batch_size)
