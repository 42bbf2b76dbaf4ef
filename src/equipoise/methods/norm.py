"""Batch normalisation by the statistics of the stream."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.batch import Batch
from equipoise.errors import ModelError
from equipoise.layers import batch_statistics, blended_statistics, pooling_layers
from equipoise.options import integer, number
from equipoise.outcome import Outcome, SourceView
from equipoise.registry import register
from equipoise.sliding import check_window, slide
from equipoise.source import SourceStatistics


@register
class Norm(Adapter):
    """Replaces the source's batch-normalisation statistics by those of the batch, or blends the two.

    Each layer normalises with (prior · source + n · batch) / (prior + n), mean and variance alike, n the
    number of samples (Schneider et al., NeurIPS 2020); prior = 0 is the batch alone (Nado et al., 2020). One
    forward a batch, no gradients.

    Args:
        model: a classifier with batch-normalisation layers that returns (N, C) logits, or an object with
            `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        prior: how many samples the source's statistics count for. Schneider et al. use 16 for small batches.
        norm_momentum: how fast the running statistics, which `predict` uses, follow the stream.
        window: a batch of one sample is normalised together with the last that came alone, up to this many.
        shared: `tempering`, `t_min`, `t_max`, `teacher`, as in every method.

    Deviations: the papers have no running statistics; `predict` and a first lone sample would have nothing to
    stand on without them.
    """

    name = "norm"
    arriving = ("samples.*",)

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        prior: float = 0.0,
        norm_momentum: float = 0.1,
        window: int = 16,
        **shared: Any,
    ) -> None:
        super().__init__(model, source, **shared)
        if not pooling_layers(self.student):
            raise ModelError(
                "norm needs batch-normalisation layers with running statistics, and the model has none; "
                "tent adapts other normalisation layers, t3a needs but a linear head, and dec works on any "
                "model"
            )
        self.prior = number("prior", prior, low=0)
        self.norm_momentum = number("norm_momentum", norm_momentum, low=0, high=1)
        self.window = integer("window", window, low=1)
        self.resolve(prior=self.prior, norm_momentum=self.norm_momentum, window=self.window)

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse a window of another size."""
        check_window(kept, self.window)

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """One forward on the batch's statistics."""
        rows = batch.rows
        if rows == 1 and self.prior == 0:
            batch, samples = slide(self.kept, batch, self.window)
            self.kept.update(samples)
        with torch.no_grad():
            logits = self._forward(batch)
        spoilt = self.spoilt()
        reason = spoilt or "only the statistics follow"
        return Outcome(logits[-rows:], reason=reason, failed=bool(spoilt))

    def _forward(self, batch: Batch) -> Tensor:
        if self.prior == 0:
            with batch_statistics(self.student, self.norm_momentum, batch.rows):
                return self.logits(batch)
        source = self.teacher.tensors(list(self.statistics))
        with blended_statistics(self.student, source, self.prior, self.norm_momentum):
            return self.logits(batch)
