"""Measure poise with batches of one and of a few samples, rehearsed at that size; a row for each stream.

    python -m benchmarks.rehearsal.batch_sizes DATA MODELS OUT.csv

DATA as `equipoise data` says; the Digits models are trained once and left in MODELS. A minute on an H200.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.rehearsal.families import DEVICE, Family, load
from equipoise.metrics import accuracy, expected_calibration_error
from equipoise.research.data.images import Images

BATCHES = (1, 8, 50)
IMAGES, REHEARSED, SHIFTS = 1000, 300, 16
"""Images of a stream, held-out images of a rehearsal, and its made-up shifts."""


def measured(name: str, family: Family, batch: int) -> list[dict[str, Any]]:
    """The source model and poise on the target and on unseen source images, in batches of one size."""
    held = family.rehearsal.select(torch.arange(REHEARSED))
    loader = [(held.pixels.float().to(DEVICE), held.labels)]
    source = eq.rehearse(
        family.model, loader, samples=REHEARSED, shifts=SHIFTS, batch_size=batch, progress=False
    )
    lines = []
    for stream, images in {"target": family.streams["target"], "no drift": family.unseen}.items():
        met = images.select(torch.arange(min(IMAGES, len(images))))
        poise, values = eq.Poise(family.model, source), []
        answers = []
        for at in range(0, len(met), batch):
            answers.append(poise(met.pixels[at : at + batch].float().to(DEVICE)).detach().cpu())
            values.append(poise.accuracy.value if poise.accuracy else float("nan"))
        with torch.no_grad():
            plain = torch.cat([family.model(rows.float().to(DEVICE)).cpu() for rows in met.pixels.split(50)])
        line = {"model": name, "stream": stream, "batch": batch, "images": len(met)}
        line |= {f"source {kind}": value for kind, value in _scores(plain, met).items()}
        line |= {f"poise {kind}": value for kind, value in _scores(torch.cat(answers), met).items()}
        lines.append({**line, "estimate": sum(values) / len(values)})
    return lines


def _scores(logits: Tensor, images: Images) -> dict[str, float]:
    return {
        "accuracy": float(accuracy(logits=logits, target=images.labels)),
        "ece": float(expected_calibration_error(logits=logits, target=images.labels)),
    }


def main() -> None:
    """Measure every model with every batch size; the file is written after each."""
    data, models, out = map(Path, sys.argv[1:4])
    lines: list[dict[str, Any]] = []
    for domain in ("mnist", "usps", "svhn"):
        family = load(f"digits {domain}", data, models, workers=1)
        for batch in BATCHES:
            lines += measured(f"digits {domain}", family, batch)
            pd.DataFrame(lines).round(4).to_csv(out, index=False)
            print(pd.DataFrame(lines[-2:]).round(3).to_string(index=False, header=False), flush=True)


if __name__ == "__main__":
    main()
