"""Batch normalisation by the statistics of the stream."""

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import ModelError
from equipoise.methods._lone_samples import check_window, rows_before, slide
from equipoise.network.batch import Batch
from equipoise.network.normalisation import pooling_layers
from equipoise.network.outcome import Outcome, SourceView, judged
from equipoise.network.pooled_batch_norm import pooled_blend, pooled_statistics
from equipoise.options import integer, number
from equipoise.registry import register


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
        shared: `tempering`, `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

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
                "tent adapts other normalisation layers, t3a needs but a linear head, and poise works on any "
                "model"
            )
        self.prior = number("prior", prior, low=0)
        self.norm_momentum = number("norm_momentum", norm_momentum, low=0, high=1)
        self.window = integer("window", window, low=1)
        self.resolve(prior=self.prior, norm_momentum=self.norm_momentum, window=self.window)

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse a window of another size."""
        check_window(kept, self.window)

    @property
    def hooked(self) -> bool:
        """Where statistics are blended."""
        return self.prior > 0

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """One forward on the batch's statistics."""
        rows = batch.rows
        if self._alone(batch):
            batch, samples = slide(self.kept, batch, self.window)
            self.kept.update(samples)
        with torch.no_grad():
            logits = self._forward(batch)
        return judged(Outcome(logits[-rows:], reason="only the statistics follow", checks=(self.unspoilt(),)))

    def course(self, batch: Batch) -> Hashable | None:
        """Whether a window is used; not for a graph while it fills up."""
        if not self._alone(batch):
            return 0
        return "alone" if rows_before(self.kept, batch) == self.window else None

    def _alone(self, batch: Batch) -> bool:
        return batch.rows == 1 and self.ranks.alone and self.prior == 0

    def _forward(self, batch: Batch) -> Tensor:
        counts = self.counts_of(batch)
        if self.prior == 0:
            with pooled_statistics(self.student, self.norm_momentum, self.ranks, counts):
                return self.logits(batch)
        source = self.teacher.tensors(list(self.statistics))
        with pooled_blend(self.student, source, self.prior, self.norm_momentum, self.ranks, counts):
            return self.logits(batch)
