"""Streams of images: gathered batch by batch, corrupted on the way, or of no class."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.options import integer
from equipoise.research.data.changing_corruptions import Changing
from equipoise.research.data.corruption_pool import seed_of
from equipoise.research.data.corruptions.weather import plasmas
from equipoise.research.data.images import Images
from equipoise.streams.kinds import KINDS, Kind, KindName, starts_of
from equipoise.streams.make import Stream, configured, draw_stream

ROUGHNESS = 1.6
"""The decay of a texture's details: the larger, the smoother."""

Image = NDArray[np.uint8]
"""An image (channels, height, width)."""


def without_class(pixels: Tensor, seeds: Sequence[int]) -> Tensor:
    """An image of no class for each image (N, channels, height, width), uint8, by a seed of its own.

    One of three, each as likely: pixels of uniform noise; a texture (a plasma fractal between two random
    colours); or the image with random phases in its Fourier transform, which keeps its colours and its
    spectrum and nothing of its shapes.
    """
    made = np.empty(tuple(pixels.shape), dtype=np.uint8)
    for place, (image, seed) in enumerate(zip(pixels.numpy(), seeds, strict=True)):
        generator = np.random.default_rng(seed)
        make = (uniform_noise, texture, phase_scrambled)[int(generator.integers(3))]
        made[place] = make(image, generator)
    return torch.from_numpy(made)


def uniform_noise(image: Image, generator: np.random.Generator) -> Image:
    """Noise of the shape of the image: each value from 0 to 255 as likely."""
    return generator.integers(0, 256, image.shape, dtype=np.uint8)


def texture(image: Image, generator: np.random.Generator) -> Image:
    """A plasma fractal of the shape of the image, between two random colours."""
    channels, height, width = image.shape
    side = 1 << (max(height, width) - 1).bit_length()
    field = plasmas(side, [generator], ROUGHNESS)[0, :height, :width]
    low, high = generator.uniform(0, 255, (2, channels, 1, 1))
    return _levels(low + (high - low) * field)


def phase_scrambled(image: Image, generator: np.random.Generator) -> Image:
    """The image with phases of white noise added to those of its Fourier transform, in all channels alike."""
    height, width = image.shape[1:]
    phases = np.angle(np.fft.rfft2(generator.standard_normal((height, width))))
    phases[0, 0] = 0  # the mean stays
    spectrum = np.fft.rfft2(image) * np.exp(1j * phases)
    return _levels(np.fft.irfft2(spectrum, s=(height, width)))


def _levels(values: NDArray[np.float64]) -> Image:
    levels: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return levels


ImageKindName: TypeAlias = KindName | Literal["changing"]
"""A kind of stream of images (`order` in recipes and results); docs/how-to/streams.md shows each."""

IMAGE_KINDS: Mapping[str, type[Kind]] = MappingProxyType({**KINDS, "changing": Changing})

Change: TypeAlias = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]
"""A function of images uint8 (N, channels, height, width), their places in the stream and a seed of each."""


@dataclass(frozen=True, eq=False)
class ImageStream(Stream):
    """An order of the images of one domain or of several, by `make_image_stream`.

    Attributes:
        change: of the images when they are gathered, for "changing".
    """

    change: Change | None = None

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
        self.check_sizes([len(domain) for domain in domains])
        shapes = {tuple(domain.pixels.shape[1:]) for domain in domains}
        if len(shapes) > 1:
            raise DataError(f"expected domains with images of one shape, got {sorted(shapes)}")
        return torch.tensor(starts_of(self.sizes))


def make_image_stream(
    labels: Sequence[Tensor], kind: ImageKindName, seed: int, *, names: Sequence[str] = (), **options: Any
) -> ImageStream:
    """A stream of the images with these labels: a kind of `streams.make_stream`, or "changing".

    Args:
        labels: int64 (N,), of the images of each domain.
        kind: of the order.
        seed: of the order, and of images that are made.
        names: of the domains, for the segments; "domain 1", "domain 2", … by default.
        options: of the kind (`streams.make_stream`); transition, severity, length and paths of "changing".
    """
    order = configured(IMAGE_KINDS, kind, options)
    stream = draw_stream(order, kind, labels, seed, names)
    change = order.change(seed) if isinstance(order, Changing) else None
    return ImageStream(**{field.name: getattr(stream, field.name) for field in fields(stream)}, change=change)
