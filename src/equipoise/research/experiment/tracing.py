"""A stream over time: the figures of each batch, and the scores of each segment."""

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.errors import DataError
from equipoise.research.experiment.schema import BatchTrace, EstimatedAccuracy, SegmentScores, Trace
from equipoise.research.experiment.scoring import score
from equipoise.streams import Segment


def trace_stream(
    answers: Sequence[Tensor],
    labels: Tensor,
    estimates: Sequence[EstimatedAccuracy | None],
    segments: Sequence[Segment],
) -> Trace:
    """The trace of a stream.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) are left out of all numbers.
        estimates: of the accuracy, after each batch.
        segments: the stretches of the stream, in order; without any, the whole stream is one.
    """
    parts = labels.split([len(batch) for batch in answers])
    batches = [_batch(*of_batch) for of_batch in zip(answers, parts, estimates, strict=True)]
    return Trace(batches=batches, segments=_segments(torch.cat(list(answers)), labels, segments))


def _batch(logits: Tensor, labels: Tensor, estimate: EstimatedAccuracy | None) -> BatchTrace:
    counted = labels >= 0
    confidence, answer = logits[counted].double().softmax(1).max(1)
    return BatchTrace(
        images=len(answer),
        correct=int((answer == labels[counted]).sum()),
        confidence=round(float(confidence.mean()), 6) if len(answer) else 0.0,
        estimate=estimate,
    )


def _segments(logits: Tensor, labels: Tensor, segments: Sequence[Segment]) -> list[SegmentScores]:
    stretches = [segment for segment in segments if segment.images] or [Segment("all", len(labels))]
    names = [segment.name for segment in stretches]
    if len(set(names)) < len(names):
        raise DataError(f"expected segments of different names, got {', '.join(names)}")
    if sum(segment.images for segment in stretches) != len(labels):
        raise DataError(
            f"expected segments of {len(labels)} images in all, got "
            f"{', '.join(f'{segment.images} of {segment.name}' for segment in stretches)}"
        )
    found, start = [], 0
    for segment in stretches:
        rows = slice(start, start + segment.images)
        start += segment.images
        counted = labels[rows] >= 0
        if not counted.any():
            continue
        scores, reliability = score(logits[rows][counted], labels[rows][counted])
        found.append(
            SegmentScores(
                name=segment.name, images=int(counted.sum()), scores=scores, reliability=reliability
            )
        )
    return found
