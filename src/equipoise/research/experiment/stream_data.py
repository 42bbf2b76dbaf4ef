"""The stream of a run: its images, gathered batch by batch, and the source model's logits on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.research.data.image_stream import ImageKindName, ImageStream, make_image_stream
from equipoise.research.data.images import Images
from equipoise.research.experiment.step import layout
from equipoise.research.experiment.trained_model import TrainedModel

HELD_BYTES = 2**30
"""Streams of no more pixels stay on the device; larger ones are gathered anew for every pass."""
HELD_SHARE = 8
"""On a GPU, those of no more than one part in so many of its free memory, if that is more."""
SOURCE_BATCH = 200


@dataclass(frozen=True)
class StreamData:
    """A stream in its order.

    Attributes:
        stream: the places of its images, its segments and options.
        parts: the images of each domain, memory-mapped.
        labels: of the stream; -1 for an image of no class.
        logits: of the source model, on the CPU.
        held: the pixels in the order of the stream on the model's device, if they are few.
        device: of the model.
    """

    stream: ImageStream
    parts: Sequence[Images]
    labels: Tensor
    logits: Tensor
    held: Tensor | None
    device: torch.device

    def batches(self, size: int) -> Iterator[Tensor]:
        """The images of each batch, as floats on the model's device."""
        if self.held is not None:
            yield from (pixels.float() for pixels in self.held.split(size))
            return
        for pixels, _ in self.stream.batches(self.parts, size):
            yield pixels.to(self.device).contiguous(memory_format=layout(self.device))


def read_stream(
    trained: TrainedModel,
    parts: Mapping[str, Images],
    order: ImageKindName,
    seed: int,
    options: Mapping[str, Any],
) -> StreamData:
    """The stream of these domains, by name, and the source model's logits on it, in one pass."""
    domains, device = list(parts.values()), next(trained.model.parameters()).device
    of_parts = [part.labels for part in domains]
    stream = make_image_stream(of_parts, order, seed, names=list(parts), **options)
    few = len(stream) * domains[0].pixels[0].nbytes <= _most_held(device)
    logits, pixels = [], []
    with torch.no_grad():
        for images, _ in stream.batches(domains, SOURCE_BATCH):
            on_device = images.to(device)
            logits.append(trained.model(on_device).cpu())
            if few:
                pixels.append(on_device.to(torch.uint8).contiguous(memory_format=layout(device)))
    held = torch.cat(pixels) if few else None
    return StreamData(stream, domains, stream.labels(of_parts), torch.cat(logits), held, device)


def _most_held(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return max(HELD_BYTES, free // HELD_SHARE)
