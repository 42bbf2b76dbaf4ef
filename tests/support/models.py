"""The small classifiers and images of the conformance suite, and what only tests need with them."""

from torch import Tensor, nn

import equipoise as eq
from equipoise.core.record import Step
from equipoise.testing.models import (
    NUM_CLASSES as CLASSES,
)
from equipoise.testing.models import (
    SMALL_MODELS as MODELS,
)
from equipoise.testing.models import (
    WithLogits,
    batch_norm_model,
    drifted,
    images,
    make,
    measured,
    rehearsed,
)
from equipoise.testing.subject import snapshot

__all__ = [
    "CLASSES",
    "MODELS",
    "Counting",
    "WithLogits",
    "batch_norm_model",
    "drifted",
    "images",
    "make",
    "measured",
    "rehearsed",
    "same",
    "snapshot",
    "step_of",
]


class Counting(nn.Module):
    """Counts the forwards of itself and of all its copies."""

    forwards = 0

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        Counting.forwards += 1
        logits: Tensor = self.inner(x)
        return logits


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[key].equal(right[key]) for key in left)


def step_of(adapter: eq.Adapter | eq.Tempered) -> Step:
    """The record of the last batch, of which there was one."""
    assert adapter.last is not None
    return adapter.last


def addresses(adapter: eq.Adapter) -> dict[str, int]:
    """Where the tensors of the state are."""
    state = adapter.responder.state
    parts = {"memory": state.memory, "temperature": state.temperature, "model": state.student.adapting}
    return {f"{part}.{name}": t.data_ptr() for part, tensors in parts.items() for name, t in tensors.items()}
