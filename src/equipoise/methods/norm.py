"""Batch normalisation by the statistics of the stream."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core.method import SAMPLES, Context, Plan, Shapes, Update
from equipoise.methods.parts.lone_samples import (
    STATISTICS_FOLLOW,
    StatisticsMethod,
    is_lone,
    join_window,
    rows_before,
)
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Norm(StatisticsMethod):
    """Replaces the source's batch-normalisation statistics by those of the batch, or blends the two.

    Each layer normalises with (prior · source + n · batch) / (prior + n), mean and variance alike, n the
    number of samples (Schneider et al., NeurIPS 2020); prior = 0 is the batch alone (Nado et al., 2020). One
    forward a batch, no gradients.

    Args:
        prior: the number of samples that the source's statistics count for; Schneider et al. use 16 for small
            batches.
        norm_momentum: how fast the running statistics, which `predict` uses, follow the stream.
        window: a batch of one sample is normalised together with the last that came alone, up to this many.

    Deviations: the papers have no running statistics; `predict` and a first lone sample need them.
    """

    name = "norm"
    arrives: ClassVar[Shapes] = {f"{SAMPLES}*": ("<=window", ...)}

    prior: float = option(0.0, low=0)
    norm_momentum: float = option(0.1, low=0, high=1)
    window: int = option(16, low=1)

    def step(self, context: Context) -> Update:
        """Run one forward on the batch's statistics, or on those of a window with a lone sample."""
        batch, samples = context.batch, dict[str, Tensor]()
        with torch.no_grad():
            if self.prior:
                logits = context.student.on_blended_statistics(batch, self.prior, self.norm_momentum)
            else:
                if is_lone(context):
                    batch, samples = join_window(context.memory, batch, self.window)
                logits = context.student.on_batch_statistics(batch, self.norm_momentum)
        added = batch.rows - context.batch.rows
        return Update(logits[added:], samples, idle=STATISTICS_FOLLOW)

    def plan(self, context: Context) -> Plan:
        """Decide whether a window is used; not captured while it fills up."""
        if self.prior or not is_lone(context):
            return Plan()
        return Plan(("lone",), captured=rows_before(context.memory, context.batch) == self.window)
