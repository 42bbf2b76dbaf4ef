"""A stream as indices: the images are gathered batch by batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.data.dataset import Segment
from equipoise.data.images import Images
from equipoise.data.making import seed_of
from equipoise.data.streams.no_class import without_class
from equipoise.data.streams.places import Change, KindName, starts_of
from equipoise.errors import DataError
from equipoise.options import integer


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
        change: of the images when they are gathered, for "changing".
    """

    kind: KindName
    rows: Tensor
    domains: Tensor
    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    options: Mapping[str, Any]
    seed: int
    about: str
    change: Change | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """The stream in one sentence."""
        return f"{len(self):,} images: {self.about} (seed {self.seed})."

    def labels(self, labels: Sequence[Tensor]) -> Tensor:
        """The label of each image of the stream, given those of each domain; −1 for an image of no class."""
        self._check_sizes([len(of_domain) for of_domain in labels])
        joined = torch.cat([of_domain.cpu() for of_domain in labels])
        return torch.where(self.rows < 0, -1, joined[self.rows.clamp(min=0)])

    def batches(self, images: Images | Sequence[Images], size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images float32 (N, channels, height, width) from 0 to 255 and labels int64 (N,), batch by batch.

        An image of a place is the same whatever the size of the batches; nothing larger than a batch is held.

        Args:
            images: of each domain, those whose labels the stream was made from.
            size: of a batch; the last one may be smaller.
        """
        domains = [images] if isinstance(images, Images) else list(images)
        starts = self._checked_starts(domains)
        size = integer("size", size, low=1)
        return (self._batch(domains, starts, places) for places in torch.arange(len(self)).split(size))

    def _batch(self, domains: Sequence[Images], starts: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        rows, of_domain = self.rows[places], self.domains[places]
        seeds = [seed_of(f"place {place} of stream {self.seed}") for place in places.tolist()]
        sizes = torch.tensor([len(domain) for domain in domains])[of_domain]
        # An image of no class is made from one of its domain.
        within = torch.where(rows < 0, torch.tensor(seeds) % sizes, rows - starts[of_domain])
        pixels = torch.empty((len(places), *domains[0].pixels.shape[1:]), dtype=torch.uint8)
        labels = torch.empty(len(places), dtype=torch.int64)
        for domain in of_domain.unique().tolist():
            here = of_domain == domain
            pixels[here] = domains[domain].pixels[within[here]]
            labels[here] = domains[domain].labels[within[here]]
        if bool((none := rows < 0).any()):
            at = none.nonzero().flatten().tolist()
            pixels[none] = without_class(pixels[none], [seeds[place] for place in at])
            labels[none] = -1
        if self.change is not None:
            pixels = self.change(pixels, places.tolist(), seeds)
        return pixels.float(), labels

    def _checked_starts(self, domains: Sequence[Images]) -> Tensor:
        """The first row of each domain; DataError for images that the stream was not made of."""
        self._check_sizes([len(domain) for domain in domains])
        shapes = {tuple(domain.pixels.shape[1:]) for domain in domains}
        if len(shapes) > 1:
            raise DataError(f"expected domains with images of one shape, got {sorted(shapes)}")
        return torch.tensor(starts_of(self.sizes))

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        if tuple(sizes) != self.sizes:
            raise DataError(
                f"expected the {' and '.join(map(str, self.sizes))} images of the domains whose labels the "
                f"stream was made from, got {' and '.join(map(str, sizes)) or 'none'}"
            )
