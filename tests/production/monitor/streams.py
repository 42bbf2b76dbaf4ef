"""Batches of made-up answers with their records, and formulas of the gauges written out in numpy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq

CLASSES = 5


@dataclass(frozen=True)
class Batch:
    logits: Tensor
    step: eq.Step
    labels: Tensor


def step(
    rows: int,
    *,
    value: float | None = 0.8,
    inside: bool = True,
    temperature: float | None = 1.5,
    source_logits: Tensor | None = None,
    source_value: float | None = None,
) -> eq.Step:
    estimate = None if value is None else eq.Estimate(value, value - 0.1, value + 0.1, inside)
    theirs = None if source_value is None else eq.Estimate(source_value, 0.0, 1.0, True)
    return eq.Step(
        samples=rows,
        used=rows,
        set_aside=0,
        updated=True,
        reason="",
        loss=None,
        entropy=None,
        temperature=temperature,
        tau_quantiles=None,
        accuracy=estimate,
        source_accuracy=theirs,
        source_logits=source_logits,
    )


def batches(sizes: list[int], seed: int = 0, **options: Any) -> list[Batch]:
    """Batches whose estimates and temperatures differ, with the source model's answers."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for index, rows in enumerate(sizes):
        logits = 2 * torch.randn(rows, CLASSES, generator=draw)
        source = logits + torch.randn(rows, CLASSES, generator=draw)
        labels = torch.randint(CLASSES, (rows,), generator=draw)
        value = 0.5 + 0.4 * index / len(sizes)
        record = step(
            rows,
            value=value,
            inside=index % 3 > 0,
            temperature=1 + index / 10,
            source_logits=source,
            source_value=value - 0.2,
        )
        made.append(Batch(logits, record, labels))
    return made


def watched(made: list[Batch], **options: Any) -> eq.Monitor:
    """A monitor that has seen some batches, each a request by its index."""
    monitor = eq.Monitor(**options)
    for index, batch in enumerate(made):
        monitor.observe(batch.logits, batch.step, request=str(index))
    return monitor


def probabilities(logits: Tensor) -> Any:
    z = logits.double().numpy()
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def bits(p: Any) -> Any:
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(1)


def calibration_error(p: Any, labels: Any) -> float:
    """ECE of 15 bins (i/15, (i+1)/15], bin by bin."""
    confidence, right = p.max(1), p.argmax(1) == labels
    error = 0.0
    for index in range(15):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        error += abs((right[inside] - confidence[inside]).sum())
    return error / len(labels)


def wilson(right: int, count: int, z: float = 1.6448536269514722) -> tuple[float, float]:
    p = right / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return middle - half, middle + half
