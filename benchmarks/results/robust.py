"""Poise under streams that break other methods: any size of batches, sorted by class, ten passes.

    python benchmarks/results/robust.py OUT RECIPE DATA --targets svhn --images 2000 > robust.csv

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from models import met
from torch import Tensor

import equipoise as eq
from equipoise.bench.plan import RunPlan
from equipoise.bench.source_model import SourceModel
from equipoise.metrics import accuracy, expected_calibration_error, negative_log_likelihood

STREAMS = {
    "batches of 50": (50, False, 1),
    "batches of 1": (1, False, 1),
    "batches of 16": (16, False, 1),
    "batches of 200": (200, False, 1),
    "sorted by class, batches of 50": (50, True, 1),
    "sorted by class, batches of 1": (1, True, 1),
    "ten passes, batches of 50": (50, False, 10),
}
"""The size of batches, whether they are sorted by class, and how many passes."""


def answered(adapter: eq.Adapter, pixels: Tensor, size: int) -> Tensor:
    """The answers to a stream in batches."""
    return torch.cat([adapter(batch.float()).detach() for batch in pixels.split(size)])


def measured(run: RunPlan, trained: SourceModel, pixels: Tensor, labels: Tensor) -> Iterator[dict[str, Any]]:
    """A row for each kind of stream."""
    with torch.no_grad():
        plain = torch.cat([trained.model(batch.float()) for batch in pixels.split(50)])
    by_class = labels.argsort(stable=True)
    cell = run.any_cell
    tier = "" if cell["tier"] is None else f"/{cell['tier']}"
    for stream, (size, in_order, passes) in STREAMS.items():
        adapter = eq.Poise(trained.model, trained.source)
        order = by_class if in_order else torch.arange(len(labels))
        for _ in range(passes):
            logits = answered(adapter, pixels[order], size)
        after = torch.cat([adapter.predict(batch.float()) for batch in pixels.split(50)])
        yield {
            "model": f"{cell['backbone']} → {cell['target']}{tier}",
            "stream": stream,
            "images": len(labels),
            "source": round(float(accuracy(logits=plain, target=labels)), 4),
            "accuracy": round(float(accuracy(logits=logits, target=labels[order])), 4),
            "ece": round(float(expected_calibration_error(logits=logits, target=labels[order])), 4),
            "nll": round(float(negative_log_likelihood(logits=logits, target=labels[order])), 4),
            "after": round(float(accuracy(logits=after, target=labels)), 4),
        }


def main() -> None:
    """Read the models and the streams, and print the rows as CSV."""
    rows = [row for found in met(__doc__ or "") for row in measured(*found)]
    pd.DataFrame(rows).to_csv(sys.stdout, index=False)


if __name__ == "__main__":
    main()
