"""TENT: minimise the entropy of the answers."""

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.functional import nats
from equipoise.methods._gradient import GradientAdapter, Objective
from equipoise.methods._lone_samples import check_window, rows_before, slide
from equipoise.network.batch import Batch
from equipoise.network.normalisation import batch_statistics, pooling_layers
from equipoise.network.optimizer import OptimizerName
from equipoise.network.outcome import Outcome, SourceView, judged
from equipoise.options import integer
from equipoise.registry import register


@register
class TENT(GradientAdapter):
    """Fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021).

        L = mean_i H(softmax(z_i)), H in nats,

    over the weights and biases of the normalisation layers, which normalise by the batch's own statistics.
    One forward and one backward a batch; the answer is that forward's, before its update.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        optimizer: "adam" (the authors, on CIFAR) or "sgd" (on ImageNet).
        learning_rate: by default 1e-3 for "adam" and 2.5e-4 for "sgd", the authors' values.
        momentum: .9 by default: of "sgd" (never Nesterov), or Adam's β₁.
        steps: steps a batch; with more than one the last forward's logits are the answer.
        parameters: "norm" (all normalisation layers), "all", or a list of name patterns.
        norm_momentum: how fast the running statistics, which only `predict` uses, follow the stream, at each
            forward.
        window: a batch of one sample is normalised together with the last that came alone, up to this many,
            and a step is taken on all of them each time so many have come. Without batch norm it learns
            alone.
        shared: `tempering`, `t_min`, `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

    Deviations: layers of every normalisation type adapt, not 2-d batch norm alone. Dropout and stochastic
    depth stay off. The authors' code drops the running statistics; here they follow the stream, for
    `predict`.
    """

    name = "tent"
    arriving: ClassVar[tuple[str, ...]] = ("samples.*",)

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        optimizer: OptimizerName = "adam",
        window: int = 16,
        **shared: Any,
    ) -> None:
        super().__init__(model, source, optimizer=optimizer, **shared)
        self.window = integer("window", window, low=1)
        self._due = False  # whether the sample that comes alone is the last before a step
        self.resolve(window=self.window)

    def initial(self) -> dict[str, Tensor]:
        """The optimiser's state, and how many samples came alone since the last step."""
        return {**super().initial(), "waiting": torch.zeros((), dtype=torch.long)}

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse a window of another size."""
        check_window(kept, self.window)

    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        """The mean entropy."""
        return Objective(nats(logits).mean(), used=len(logits))

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """A step on the batch, or, for a lone sample and layers that pool samples, on the window."""
        if not self._alone(batch):
            return super().step(batch, source)
        if self.permitted is None:
            self.feed(batch)
        pooled, samples = slide(self.kept, batch, self.window)
        self.kept.update(samples)
        if self._due:
            outcome = super().step(pooled, None)
            return outcome._replace(logits=outcome.logits[-1:])
        with torch.no_grad(), batch_statistics(self.student, self.norm_momentum, pooled.rows):
            logits = self.logits(pooled)
        waiting = "some" if self.permitted is not None else int(self.kept["waiting"])
        reason = f"{waiting} of {self.window} lone samples for the next step"
        return judged(Outcome(logits[-1:], reason=reason, checks=(self.unspoilt(),)))

    def course(self, batch: Batch) -> Hashable | None:
        """Whether a step is due; not for a graph while the window fills up."""
        if not self._alone(batch):
            return 0
        full = rows_before(self.kept, batch) == self.window
        return ("alone", int(self.kept["waiting"]) + 1 >= self.window) if full else None

    def feed(self, batch: Batch) -> dict[str, Tensor]:
        """Count the samples that come alone; a step is due with the last of a window."""
        if self._alone(batch):
            there = min(rows_before(self.kept, batch) + 1, self.window)
            waiting = min(int(self.kept["waiting"]) + 1, there)
            self._due = waiting == self.window
            self.kept["waiting"] = torch.tensor(0 if self._due else waiting)
        return {}

    def _alone(self, batch: Batch) -> bool:
        # Several processes have their samples in common, and no window.
        return batch.rows == 1 and self.ranks.alone and bool(pooling_layers(self.student))
