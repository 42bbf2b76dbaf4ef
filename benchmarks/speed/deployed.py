"""What a step of poise costs as it is deployed: rehearsed, with one forward or two, guarded and monitored.

The rehearsal is that of a small network with as many classes, on images of the same size: that of a
large one would take hours on a CPU, and a step takes as long by either, as they are the same tensors with
other numbers.
"""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.speed.cases import PLAIN, Case
from benchmarks.speed.measure import measured
from benchmarks.speed.reference import Source

ONE_FORWARD, DEFAULT, WATCHED, PREDICT = "one forward", "default", "guarded and monitored", "predict"
_HELD_OUT = 256
_SIDE = 8  # to which the small network scales its images down


def deployed(case: Case, seconds: float) -> dict[str, Any]:
    """Times of the plain forward, of a step in four forms, and their ratios to the plain forward."""
    source = _rehearsed(case)
    adapter = partial(eq.Poise, case.network(), source)
    return measured(
        case,
        {
            PLAIN: lambda: Source(case.network()).step,
            ONE_FORWARD: partial(adapter, falls_back=False),
            DEFAULT: adapter,
            WATCHED: lambda: eq.Monitor(eq.Guarded(adapter())),
            PREDICT: lambda: adapter().predict,
        },
        period=1,
        seconds=seconds,
    )


@lru_cache(maxsize=1)
def _rehearsed(case: Case) -> eq.SourceStatistics:
    """The statistics of the case's network, with the rehearsal of a small one."""
    x = case.held_out(_HELD_OUT)
    small = _Small(x.shape[1], case.classes).to(case.device).eval()
    labels = torch.arange(len(x), device=x.device) % case.classes
    found = eq.rehearse(small, (x, labels), shifts=8, check_held_out=False, progress=False)
    return replace(case.source(), inputs=found.inputs, rehearsals=found.rehearsals)


class _Small(nn.Module):
    """A linear classifier of small images."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.shrink, self.head = nn.AdaptiveAvgPool2d(_SIDE), nn.Linear(channels * _SIDE**2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images with values from 0 to 255."""
        logits: Tensor = self.head(self.shrink(x).flatten(1) / 255)
        return logits
