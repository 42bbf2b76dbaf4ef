"""Labelled images in memory, as every data set gives them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import DataError
from equipoise.options import integer


@dataclass(frozen=True)
class Images:
    """Images with values from 0 to 255 and their labels.

    Attributes:
        pixels: uint8 (N, channels, height, width), perhaps memory-mapped.
        labels: int64 (N,).
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Check dtypes and shapes."""
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise DataError(
                f"expected uint8 pixels (N, channels, height, width), got {self.pixels.dtype} "
                f"{tuple(self.pixels.shape)}"
            )
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != (len(self.pixels),):
            raise DataError(
                f"expected {len(self.pixels)} int64 labels, got {self.labels.dtype} "
                f"{tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "Images":
        """The images of these rows, in their order."""
        return Images(self.pixels[rows], self.labels[rows])

    @staticmethod
    def join(parts: Sequence["Images"]) -> "Images":
        """The images of several sets, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Images(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))

    def digest(self) -> str:
        """A hash of the pixels and labels."""
        digest = hashlib.blake2b(str(tuple(self.pixels.shape)).encode(), digest_size=16)
        digest.update(self.pixels.contiguous().numpy().data)
        digest.update(self.labels.contiguous().numpy().data)
        return digest.hexdigest()


def chosen(count: int, limit: int | None) -> Tensor:
    """Rows of `count` images under a limit: a random choice, the same each time, in ascending order."""
    if limit is None or integer("limit", limit, low=1) >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))[:limit].sort().values
