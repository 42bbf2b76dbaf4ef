"""The numbers that the triggers are fed with, one record a batch: everything that decisions depend on."""

from collections import Counter
from dataclasses import dataclass

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
        novelty: how unlike source inputs those of the last few hundred samples are; None without a rehearsal.
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
    novelty: float | None = None
    finite: bool = True
    weights: float = 0.0
    statistics: float = 0.0


def observe(
    adapter: Adapter, logits: Tensor, source_logits: Tensor, step: Step, *, learned: bool
) -> Observation:
    """The observation of a batch that an adapter has just answered; waits for the device."""
    finite, weights, statistics = adapter.deviation()
    return Observation(
        samples=len(logits),
        classes=logits.shape[1],
        pairs=answer_pairs(logits, source_logits),
        learned=learned,
        accuracy=_numbers(step.accuracy),
        source_accuracy=_numbers(step.source_accuracy),
        answered_by=step.answered_by,
        novelty=step.novelty,
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


def label_counts(target: Tensor, own: Tensor, theirs: Tensor, size: int) -> list[tuple[int, int, int]]:
    """The counts of right answers, of labels (N) and both models' logits (N, C), in pieces of some samples.

    Rows with logits that are not finite are left out.

    Returns:
        Of each piece of at most `size` rows: how many the source model alone had right, both models or none,
        and the adapted model alone.
    """
    rows = own.isfinite().all(1) & theirs.isfinite().all(1)
    behind = (theirs.argmax(1) == target)[rows].int() - (own.argmax(1) == target)[rows].int()
    pieces = behind.split(size) if len(behind) else ()
    return [(int((d > 0).sum()), int((d == 0).sum()), int((d < 0).sum())) for d in pieces]
