"""The answer to a batch of one stream: logits of both models, and who answered."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from equipoise.calibration.rehearsal import Estimate
from equipoise.core.record import Step


@dataclass(frozen=True)
class Learned:
    """The answer to a batch of one stream.

    Attributes:
        given: the logits that clients get, (N, C), on the host.
        adapted: those of the adapter.
        source: those of the source model, where it was asked.
        step: the record of the batch, where it was learned from.
        temperature: the divisor of `given`.
        accuracy: the estimated accuracy of `given`.
        source_accuracy: that of the source model.
        answered_by: "student" or "source".
        reason: why nothing was learned, or rows were set aside.
        batch: the guard's number of the batch; None without a guard.
    """

    given: Tensor
    adapted: Tensor
    source: Tensor | None
    step: Step | None
    temperature: float | None
    accuracy: Estimate | None
    source_accuracy: Estimate | None
    answered_by: Literal["student", "source"]
    reason: str
    batch: int | None

    @property
    def learned(self) -> bool:
        """Whether the adapter has learned from the batch."""
        return self.step is not None and self.step.updated

    def by_source(self, source: Tensor, temperature: float | None) -> "Learned":
        """The same batch, answered by the source model."""
        return replace(
            self,
            given=source if temperature is None else source / temperature,
            source=source,
            temperature=temperature,
            accuracy=self.source_accuracy,
            answered_by="source",
        )

    def rows(self, chosen: Tensor) -> "Learned":
        """The rows of the batch where `chosen`, (N,), is true."""
        given, adapted = self.given[chosen], self.adapted[chosen]
        source = None if self.source is None else self.source[chosen]
        return replace(self, given=given, adapted=given if self.of_adapter else adapted, source=source)

    @property
    def of_adapter(self) -> bool:
        """Whether clients get the logits of the adapter."""
        return self.given is self.adapted

    def record(self) -> Step:
        """The record of `given` for a monitor; `source_logits` are those of the model that did not answer."""
        return Step(
            samples=len(self.given),
            used=0 if self.step is None else self.step.used,
            set_aside=int((~self.given.isfinite().all(1)).sum()),
            updated=self.learned,
            reason=self.reason,
            loss=None,
            entropy=None,
            temperature=self.temperature,
            tau_quantiles=None,
            accuracy=self.accuracy,
            source_accuracy=self.source_accuracy,
            answered_by=self.answered_by,
            source_logits=self.source if self.of_adapter else self.adapted,
        )
