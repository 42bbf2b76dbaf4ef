"""The streams that robustness is measured on: images of a target in batches, orders and conditions."""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.results.models import SEED
from equipoise.research.data.corruptions.dispatch import corrupt
from equipoise.research.data.images import Images
from equipoise.streams import KindName, make_stream


class Stream(NamedTuple):
    """The size of batches, the order of the images, the number of passes, and whether the images change."""

    size: int = 50
    order: KindName = "recorded"
    passes: int = 1
    changes: bool = False


STREAMS = {
    "batches of 50": Stream(),
    "batches of 1": Stream(size=1),
    "batches of 16": Stream(size=16),
    "batches of 200": Stream(size=200),
    "sorted by class": Stream(order="sorted"),
    "sorted by class, batches of 1": Stream(size=1, order="sorted"),
    "ten passes": Stream(passes=10),
    "abrupt changes": Stream(changes=True),
}
CHANGES = ("clean", "gaussian_noise", "contrast", "inverted", "clean")
"""The segments of "abrupt changes", each with its own fifth of the images; corruptions are of tier 5."""


def changed(pixels: Tensor, change: str) -> Tensor:
    """Images as they are, inverted, or corrupted; grey ones are shown three times, and the first is taken."""
    if change == "clean":
        return pixels
    if change == "inverted":
        return 255 - pixels
    colour = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    made = torch.from_numpy(corrupt(colour, change, 5, range(len(pixels))))
    return made.permute(0, 3, 1, 2)[:, : pixels.shape[1]]


def segments(stream: Stream, images: Images) -> list[Images]:
    """The images of a stream in its order, cut where they change."""
    ordered = images.select(make_stream([images.labels], stream.order, SEED).rows)
    if not stream.changes:
        return [ordered]
    parts = [ordered.select(rows) for rows in torch.arange(len(ordered)).tensor_split(len(CHANGES))]
    return [Images(changed(part.pixels, how), part.labels) for part, how in zip(parts, CHANGES, strict=True)]
