"""A stream as indices: the images are gathered batch by batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import DataError
from equipoise.streams.places import Segment


@dataclass(frozen=True, eq=False)
class Stream:
    """An order of the images of one domain or of several, by `make_stream`.

    Attributes:
        kind: of the order.
        rows: int64 (T,), into the domains joined one after another; −1 for an image of no class.
        domains: int64 (T,), the index of the domain of each image.
        segments: named stretches, one after the other; their images add up to T.
        sizes: the number of images of each domain that it was made of.
        options: of the kind, defaults included.
        seed: of the order, and of images that are made.
        about: the order in words.
    """

    kind: str
    rows: Tensor
    domains: Tensor
    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    options: Mapping[str, Any]
    seed: int
    about: str

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """The stream in one sentence."""
        return f"{len(self):,} images: {self.about} (seed {self.seed})."

    def labels(self, labels: Sequence[Tensor]) -> Tensor:
        """The label of each image of the stream, given those of each domain; −1 for an image of no class."""
        self.check_sizes([len(of_domain) for of_domain in labels])
        joined = torch.cat([of_domain.cpu() for of_domain in labels])
        return torch.where(self.rows < 0, -1, joined[self.rows.clamp(min=0)])

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise DataError unless the domains have as many samples as those that the stream was made of."""
        if tuple(sizes) != self.sizes:
            raise DataError(
                f"expected the {' and '.join(map(str, self.sizes))} images of the domains whose labels the "
                f"stream was made from, got {' and '.join(map(str, sizes)) or 'none'}"
            )
