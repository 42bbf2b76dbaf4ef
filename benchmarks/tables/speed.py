"""Measure how many rows a second `Estimator.update` takes on one core.

python -m benchmarks.tables.speed
"""

import statistics
import time

import torch

import equipoise as eq

ROWS, HELD_OUT, TIMES = 1_000_000, 20_000, 5
CLASSES = (2, 10, 100)


def seconds(classes: int) -> list[float]:
    """The times that a chunk of `ROWS` rows takes."""
    draw = torch.Generator().manual_seed(0)
    rows = ROWS if classes <= 10 else ROWS // 10
    probs = (3 * torch.randn(rows, classes, generator=draw)).softmax(1)
    labels = torch.multinomial(probs[:HELD_OUT], 1, generator=draw).squeeze(1)
    estimator, taken = eq.Estimator.fit(probs[:HELD_OUT], labels), []
    for _ in range(TIMES):
        began = time.perf_counter()
        estimator.update(probs)
        taken.append((time.perf_counter() - began) * ROWS / rows)
    return taken


def main() -> None:
    """Print the median of each number of classes."""
    torch.set_num_threads(1)
    for classes in CLASSES:
        taken = seconds(classes)
        print(f"{classes} classes: {ROWS / statistics.median(taken) / 1e6:.1f} million rows a second")


if __name__ == "__main__":
    main()
