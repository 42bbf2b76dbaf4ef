"""What each method costs a batch: forwards and backwards counted, time as a ratio, memory held.

    python benchmarks/method_costs.py

The model counts its own calls; times are of rounds in which every method answers the same batch in turn, in
one process, over the plain forward of the same round (median of the rounds). SmallCNN, 10 classes, batches of
50. Prints the two tables of docs/methods.md.
"""

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq

BATCH, ROUNDS, WARM_UP = 50, 24, 2
METHODS: dict[str, dict[str, Any]] = {
    "source": {},
    "norm": {},
    "tent": {},
    "eta": {"margin": 1.0, "epsilon": 1.0},
    "eata": {"margin": 1.0, "epsilon": 1.0},
    "t3a": {},
    "sotta": {"confidence": 0.0},
    "dec": {},
    "poise": {},
}


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


def count(adapter: eq.Adapter, stream: list[Tensor]) -> tuple[float, float, float]:
    """Forwards, backwards and forwarded samples a batch, over a stream."""
    Counting.forwards = Counting.samples = Counting.backwards = 0
    for x in stream:
        adapter(x)
    batches = len(stream)
    return Counting.forwards / batches, Counting.backwards / batches, Counting.samples / batches


def main() -> None:
    """Count, time and weigh every method, raw and tempered."""
    torch.manual_seed(0)
    model = Counting(eq.models.SmallCNN()).eval()
    stream = [torch.rand(BATCH, 1, 32, 32) * 255 for _ in range(ROUNDS + WARM_UP)]
    source = eq.SourceStatistics.measure(model, stream[:8], fisher=True, progress=False)

    def made(name: str, tempering: str) -> eq.Adapter:
        return eq.create(name, model, source, tempering=tempering, **METHODS[name])

    adapters = {(name, kind): made(name, kind) for name in METHODS for kind in ("none", "median")}
    spent: dict[tuple[str, str], list[float]] = {key: [] for key in adapters}
    for place, x in enumerate(stream):
        start = time.perf_counter()
        with torch.no_grad():
            model(x)
        plain = time.perf_counter() - start
        for key, adapter in adapters.items():
            start = time.perf_counter()
            adapter(x)
            if place >= WARM_UP:
                spent[key].append((time.perf_counter() - start) / plain)

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, SmallCNN, batches of {BATCH}\n")
    print("| method | forwards | backwards | samples forwarded | time / plain forward | tempered |")
    print("|---|---|---|---|---|---|")
    for name in METHODS:
        forwards, backwards, samples = count(made(name, "none"), stream)
        more, _, _ = count(made(name, "median"), stream)
        ratio, tempered = (median(spent[name, kind]) for kind in ("none", "median"))
        print(
            f"| `{name}` | {forwards:.2f} | {backwards:.2f} | {samples:.0f} | {ratio:.2f} "
            f"| {more:.2f} forwards, {tempered:.2f} |"
        )
    print(
        "\n| method | parameters held | learned | buffers | supports | observations | the paper's measure |"
    )
    print("|---|---|---|---|---|---|---|")
    for (name, kind), adapter in adapters.items():
        if kind == "none":
            held = adapter.footprint()
            amounts = (held.parameters, held.learned, held.buffers, held.supports, held.observations)
            print(f"| `{name}` | {' | '.join(f'{a.numbers:,}' for a in amounts)} | {held.paper:,} |")


if __name__ == "__main__":
    main()
