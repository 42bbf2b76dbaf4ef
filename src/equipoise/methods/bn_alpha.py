"""Batch norm by a fixed blend of the source's statistics and the batch's."""

import math
from dataclasses import dataclass

import torch

from equipoise.core.method import Context, Update
from equipoise.methods.parts.lone_samples import STATISTICS_FOLLOW, StatisticsMethod
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class BnAlpha(StatisticsMethod):
    """Blends the source's batch-normalisation statistics with those of the batch, always in the same shares.

        mean = (1 − alpha) · source + alpha · batch,  and the variance likewise,

    for a batch of any size, of one sample too. alpha = 0 is the source model, alpha = 1 the batch alone (Nado
    et al., 2020). `norm` has the form of Schneider et al. (NeurIPS 2020), in which the batch's share
    n / (prior + n) grows with its size n: for batches of one size, prior = n · (1 − alpha) / alpha is the
    same method, which is how it is computed. One forward a batch, no gradients.

    Args:
        alpha: the share of the batch's statistics; .1 is that of public implementations for single samples.
        norm_momentum: how fast the running statistics, which `predict` uses, follow the blend.

    Deviations: those of `norm`. The batch's variance is the biased one, with which batch norm normalises in
    train mode: alpha = 1 is just that. Public implementations blend in the unbiased one, larger by
    m / (m − 1) for m values a channel.
    """

    name = "bn_alpha"

    alpha: float = option(0.1, low=0, high=1)
    norm_momentum: float = option(0.1, low=0, high=1)

    def step(self, context: Context) -> Update:
        """Run one forward on the blended statistics."""
        student, batch = context.student, context.batch
        odds = (1 - self.alpha) / self.alpha if self.alpha else math.inf
        with torch.no_grad():
            logits = student.on_blended_statistics(
                batch, prior=student.all_rows(batch) * odds, momentum=self.norm_momentum
            )
        return Update(logits, idle=STATISTICS_FOLLOW)
