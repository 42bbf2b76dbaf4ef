"""The stand-in for a guard where a service is asked to do without one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.core.record import Step
from equipoise.production.server.errors import UnknownSnapshotError


class Unguarded:
    """An adapter under the interface of a guard: nothing is watched, and there are no snapshots."""

    events: tuple[Any, ...] = ()
    snapshots: tuple[str, ...] = ()
    holding = False
    batch = None

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def __call__(self, inputs: Tensor) -> Tensor:
        """Answer a batch and learn from it."""
        answer: Tensor = self.adapter(inputs)
        return answer

    def predict(self, inputs: Tensor) -> Tensor:
        """Answer a batch."""
        return self.adapter.predict(inputs)

    def label(
        self, target: Tensor, *, logits: Tensor, source_logits: Tensor, batch: int | None = None
    ) -> None:
        """Nothing: labels are for a guard."""

    def status(self) -> str:
        """That nothing is watched."""
        return "unguarded: nothing is watched"

    def rollback(self, steps: int = 1) -> str:
        """Raise UnknownSnapshotError."""
        raise UnknownSnapshotError("expected a guarded service, got one without a guard: it has no snapshots")

    def snapshot(self) -> str:
        """Raise UnknownSnapshotError."""
        raise UnknownSnapshotError(
            "expected a guarded service, got one without a guard: it takes no snapshots"
        )

    def release(self) -> None:
        """Nothing: there is no guard that could hold the adapter."""

    def reset(self, reason: str) -> None:
        """Go back to the source model."""
        self.adapter.reset()

    @property
    def last(self) -> Step | None:
        """The record of the last batch."""
        return self.adapter.last

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing."""
