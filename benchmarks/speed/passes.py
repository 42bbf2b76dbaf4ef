"""Passes of a step, counted by the model itself, and the numbers that an adapter holds afterwards."""

from typing import Any

from torch import Tensor, nn

import equipoise as eq
from benchmarks.speed.cases import METHODS, Case

BATCHES = 26
"""Batches of a count: updates of SoTTA come every 64 samples."""
HELD = ("parameters", "learned", "buffers", "supports", "observations")


class Counting(nn.Module):
    """A classifier that counts its forwards, the samples in them, and the backwards through it."""

    forwards = samples = backwards = 0

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """The inner model's logits, counted."""
        Counting.forwards += 1
        Counting.samples += len(x)
        logits: Tensor = self.inner(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    @staticmethod
    def _count(_gradient: Tensor) -> None:
        Counting.backwards += 1


def passes(case: Case, label: str) -> dict[str, Any]:
    """Forwards, backwards and samples of a step on average, raw and tempered, and the numbers held."""
    model, images = Counting(case.network()), case.images()
    stream = [images[at % len(images)] for at in range(BATCHES)]
    source = eq.SourceStatistics.measure(model, images, fisher=True, features=True, progress=False)
    # By default T3A holds a sum a class, not single supports.
    options = {name: value for name, value in METHODS[label].options.items() if name != "supports"}
    found = {}
    for tempering in ("none", "median"):
        adapter = eq.create(METHODS[label].name, model, source, tempering=tempering, **options)
        Counting.forwards = Counting.samples = Counting.backwards = 0
        for x in stream:
            adapter(x)
        counts = (Counting.forwards, Counting.backwards, Counting.samples)
        found[tempering] = [round(count / BATCHES, 2) for count in counts]
        if tempering == "none":
            held = adapter.footprint()
    numbers = {name: getattr(held, name).numbers for name in HELD}
    return {"passes": found, "numbers": {**numbers, "paper": held.paper}}
