"""The numbers that the triggers are fed with, one record a batch: everything that decisions depend on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration.rehearsal import Estimate
from equipoise.core.record import Step


@dataclass(frozen=True)
class Observation:
    """A batch as the guard sees it: plain numbers, so that a log can hold them.

    Attributes:
        samples: samples in the batch.
        classes: the number of classes.
        pairs: (class answered, class that the source model answers, count), for samples with finite logits of
            both, in order.
        learned: whether the adapter was permitted to learn from the batch: False while it is held.
        accuracy: the estimated accuracy of the answers, without labels: value, low, high; None without a
            rehearsal.
        source_accuracy: that of the source model; None where it is not asked.
        answered_by: "student" or "source".
        finite: whether all weights, statistics and memory of the adapter are finite.
        weights: ‖θ − θ₀‖ / ‖θ₀‖ of the weights that learn, θ₀ those of the source model; 0 if not finite.
        statistics: the same of the running statistics.
    """

    samples: int
    classes: int
    pairs: tuple[tuple[int, int, int], ...] = ()
    learned: bool = True
    accuracy: tuple[float, float, float] | None = None
    source_accuracy: tuple[float, float, float] | None = None
    answered_by: str = "student"
    finite: bool = True
    weights: float = 0.0
    statistics: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Observation":
        """The inverse of `to_json`; TypeError where the names are others."""
        made = dict(values)
        made["pairs"] = tuple((int(a), int(b), int(n)) for a, b, n in made["pairs"])
        for name in ("accuracy", "source_accuracy"):
            made[name] = None if made[name] is None else tuple(made[name])
        return cls(**made)


def observe(
    adapter: Adapter, logits: Tensor, source_logits: Tensor, step: Step | None, *, learned: bool
) -> Observation:
    """The observation of a batch that an adapter has just answered; waits for the device."""
    finite, weights, statistics = deviation(adapter)
    return Observation(
        samples=len(logits),
        classes=logits.shape[1],
        pairs=answer_pairs(logits, source_logits),
        learned=learned,
        accuracy=None if step is None else _numbers(step.accuracy),
        source_accuracy=None if step is None else _numbers(step.source_accuracy),
        answered_by="student" if step is None else step.answered_by,
        finite=finite,
        weights=weights,
        statistics=statistics,
    )


def _numbers(estimate: Estimate | None) -> tuple[float, float, float] | None:
    return None if estimate is None else (estimate.value, estimate.low, estimate.high)


def answer_pairs(logits: Tensor, source_logits: Tensor) -> tuple[tuple[int, int, int], ...]:
    """The classes of two models' logits (N, C) and the count of each pair, over rows that both answer."""
    rows = logits.isfinite().all(1) & source_logits.to(logits.device).isfinite().all(1)
    both = torch.stack([logits.argmax(1), source_logits.to(logits.device).argmax(1)], 1)[rows]
    counts = Counter((int(a), int(b)) for a, b in both.tolist())
    return tuple((a, b, count) for (a, b), count in sorted(counts.items()))


def deviation(adapter: Adapter) -> tuple[bool, float, float]:
    """Whether everything that adapts is finite, and how far weights and statistics are from the source's."""
    student = adapter._respond.student
    source = student.source_values(student.adapting)
    memory = {name: tensor for name, tensor in adapter.memory.items() if tensor.is_floating_point()}
    with torch.no_grad():
        weights, statistics = (_relative(part, source) for part in (student.learned, student.statistics))
        sums = [tensor.sum() for tensor in memory.values()]
        finite = bool(torch.stack([weights, statistics, *(s.to(weights) for s in sums)]).isfinite().all())
    return finite, *((float(weights), float(statistics)) if finite else (0.0, 0.0))


def _relative(values: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> Tensor:
    """‖values − source‖ / ‖source‖ over all tensors; 0 where there are none."""
    moved = length = torch.zeros((), dtype=torch.float64)
    for name, value in values.items():
        if value.is_floating_point():
            start = source[name].to(value.device).float()
            moved = moved + (value.detach().float() - start).square().sum().double().cpu()
            length = length + start.square().sum().double().cpu()
    return (moved / length).sqrt() if length > 0 else moved.sqrt()
