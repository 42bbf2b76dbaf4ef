"""The label-free estimates of accuracy along a stream, against its true accuracy."""

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.research.experiment.schema import EstimatedAccuracy, StreamEstimate

RECENT_IMAGES = 500
"""The images before the end of a batch whose accuracy an interval is held against: an estimate forgets."""


def stream_estimate(
    answers: Sequence[Tensor], labels: Tensor, estimates: Sequence[EstimatedAccuracy | None]
) -> StreamEstimate | None:
    """The means of the estimates after each batch, and the share of the intervals that were right.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) count neither as right nor as wrong.
        estimates: of the accuracy, after each batch.

    Returns:
        None where no batch has an estimate.
    """
    counted = labels >= 0
    hits = (torch.cat(list(answers)).argmax(1) == labels)[counted].double()
    total = torch.cat([hits.new_zeros(1), hits.cumsum(0)])
    ends = counted.cumsum(0)[torch.tensor([len(batch) for batch in answers]).cumsum(0) - 1]
    starts = (ends - RECENT_IMAGES).clamp(min=0)
    recent = (total[ends] - total[starts]) / (ends - starts)
    known = [(e, r) for e, r in zip(estimates, recent.tolist(), strict=True) if e is not None and r == r]
    if not known:
        return None
    return StreamEstimate(
        value=sum(e["value"] for e, _ in known) / len(known),
        low=sum(e["low"] for e, _ in known) / len(known),
        high=sum(e["high"] for e, _ in known) / len(known),
        covered=sum(e["low"] <= r <= e["high"] for e, r in known) / len(known),
        off=sum(abs(e["value"] - r) for e, r in known) / len(known),
    )
