"""Bases of methods on batch norm: they need a model that has it, and more than one sample at a time.

A sample that comes alone is normalised with the last few that came alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import GradientMethod
from equipoise.core.method import SAMPLES, Context, Memory, Method, Plan, Shapes, Update
from equipoise.core.student import Student
from equipoise.errors import ModelError
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.normalisation import batch_norm_layers
from equipoise.options import option

STATISTICS_FOLLOW = "only the statistics follow"
"""The reason why no sample was learned from."""


@dataclass(frozen=True, kw_only=True)
class StatisticsMethod(Method):
    """A method that adapts the statistics of batch norm, and nothing else."""

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse a model without batch norm with running statistics."""
        if not batch_norm_layers(student.model):
            raise ModelError(
                f"{self.name} needs batch-normalisation layers with running statistics, and the model "
                "has none; tent adapts other normalisation layers, t3a needs but a linear head, and poise "
                "works on any model"
            )


WAITING = "waiting"
"""The count of samples that came alone since the last step."""


def is_lone(context: Context) -> bool:
    """Whether a batch is one sample, which batch norm cannot normalise; several processes share theirs."""
    student = context.student
    return context.batch.rows == 1 and student.ranks.alone and bool(batch_norm_layers(student.model))


def rows_before(memory: Memory, batch: Batch) -> int:
    """The number of samples in the window that a single one can join."""
    samples, stored = batch.samples(), part(memory, SAMPLES)
    return len(next(iter(stored.values()))) if stored and _fits(stored, samples) else 0


def join_window(memory: Memory, batch: Batch, size: int) -> tuple[Batch, dict[str, Tensor]]:
    """A single sample together with those before it, at most `size`, itself last; and the memory of them.

    Samples of another shape cannot be in one batch: the window starts again with them.
    """
    samples, stored = batch.samples(), part(memory, SAMPLES)
    fits = _fits(stored, samples)
    window = {n: torch.cat([stored[n], new])[-size:] if fits else new.clone() for n, new in samples.items()}
    return batch.with_samples(window), prefixed(SAMPLES, window)


def _fits(stored: Memory, samples: Memory) -> bool:
    return stored.keys() == samples.keys() and all(
        stored[name].shape[1:] == new.shape[1:] and stored[name].dtype == new.dtype
        for name, new in samples.items()
    )


@dataclass(frozen=True, kw_only=True)
class WindowedMethod(GradientMethod):
    """A gradient method for batches of one sample, too, on models with batch norm.

    Args:
        window: a batch of one sample is normalised together with the last that came alone, up to this many,
            and a step is taken on all of them each time so many have come. Without batch norm a sample is
            learned from alone.
    """

    counters: ClassVar[Mapping[str, str | None]] = {WAITING: "window"}
    arrives: ClassVar[Shapes] = {f"{SAMPLES}*": ("<=window", ...)}

    window: int = option(16, low=1)

    def plan(self, context: Context) -> Plan:
        """Decide whether a lone sample completes its window; not captured while the window fills up."""
        if not is_lone(context):
            return Plan()
        before = rows_before(context.memory, context.batch)
        waiting = min(int(context.counts[WAITING]) + 1, before + 1, self.window)
        due = waiting == self.window
        idle = "" if due else f"{waiting} of {self.window} lone samples for the next step"
        return Plan(("lone", due), {WAITING: 0 if due else waiting}, idle, captured=before == self.window)

    def step(self, context: Context) -> Update:
        """Take a step on the batch, or answer a lone sample in its window, with a step if one is due."""
        if not is_lone(context):
            update = super().step(context)
            return update._replace(logits=self.answers(update.logits))
        pooled, samples = join_window(context.memory, context.batch, self.window)
        if context.plan.idle:
            with torch.no_grad():
                logits = context.student.on_batch_statistics(pooled, self.norm_momentum)
            return Update(self.answers(logits)[-1:], samples)
        update = super().step(context._replace(batch=pooled))
        return update._replace(logits=self.answers(update.logits)[-1:], memory={**update.memory, **samples})

    def answers(self, logits: Tensor) -> Tensor:
        """The answers by the logits of a batch, or of the window of a lone sample."""
        return logits
