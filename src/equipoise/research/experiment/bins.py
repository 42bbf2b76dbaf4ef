"""A stream over time in bins of images: a few numbers for each bin, however long the stream is."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.research.experiment.schema import BinnedSegment, Bins, EstimatedAccuracy
from equipoise.streams import Segment

MOST_BINS = 320
"""Sixteen domains twenty times have one bin each; a line of results stays at a few kilobytes."""
MOST_NAMED = 40
"""More segments than these are divided into bins, but not named."""


def bin_stream(
    answers: Sequence[Tensor],
    labels: Tensor,
    estimates: Sequence[EstimatedAccuracy | None],
    segments: Sequence[Segment],
) -> Bins:
    """Counts of right answers, confidence, NLL and estimate in each bin.

    A bin's estimate is the mean of those after the batches that end in it, or the last one before.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) are left out of all numbers.
        estimates: of the accuracy, after each batch.
        segments: the stretches of the stream, in order.
    """
    stretches = [segment for segment in segments if segment.images]
    if len(stretches) > MOST_BINS or not stretches:
        stretches = [Segment("all", len(labels))]
    cut = [_cut(segment.images, max(1, MOST_BINS // len(stretches))) for segment in stretches]
    sizes = torch.tensor([size for several in cut for size in several])
    where = torch.arange(len(sizes)).repeat_interleave(sizes)
    logits, counted = torch.cat(list(answers)), labels >= 0
    confidence, answer = logits.softmax(1).max(1)
    losses = cross_entropy(logits[counted], labels[counted], reduction="none")
    images = _sums(where[counted], torch.ones(int(counted.sum())), len(sizes))
    correct = _sums(where[counted], (answer == labels)[counted], len(sizes))
    sure = _sums(where[counted], confidence[counted], len(sizes)) / images.clamp(min=1)
    nll = _sums(where[counted], losses, len(sizes)) / images.clamp(min=1)
    found = Bins(
        images=images.long().tolist(),
        correct=correct.long().tolist(),
        confidence=[round(value, 4) for value in sure.tolist()],
        nll=[round(value, 4) for value in nll.tolist()],
        segments=[
            BinnedSegment(name=segment.name, bins=len(several))
            for segment, several in zip(stretches, cut, strict=True)
        ]
        if len(stretches) <= MOST_NAMED
        else [BinnedSegment(name="all", bins=len(sizes))],
    )
    if any(estimate is not None for estimate in estimates):
        ends = accumulate(len(batch) for batch in answers)
        found["estimate"] = _estimates([int(where[end - 1]) for end in ends], estimates, len(sizes))
    return found


def _cut(images: int, pieces: int) -> list[int]:
    """Nearly equal sizes, at most so many and none of them zero, that add up to a number of images."""
    pieces = min(pieces, images)
    ends = [images * piece // pieces for piece in range(pieces + 1)]
    return [high - low for low, high in pairwise(ends)]


def _sums(where: Tensor, values: Tensor, bins: int) -> Tensor:
    return torch.zeros(bins, dtype=torch.float64).index_add(0, where, values.double())


def _estimates(
    where: Sequence[int], estimates: Sequence[EstimatedAccuracy | None], bins: int
) -> list[float | None]:
    inside: dict[int, list[float]] = {}
    for place, estimate in zip(where, estimates, strict=True):
        if estimate is not None:
            inside.setdefault(place, []).append(estimate["value"])
    found: list[float | None] = []
    for place in range(bins):
        last = found[-1] if found else None
        found.append(round(sum(inside[place]) / len(inside[place]), 4) if place in inside else last)
    return found
