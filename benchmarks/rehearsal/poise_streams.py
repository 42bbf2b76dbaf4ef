"""Measure how honest poise is with a rehearsal, on models of four families; a row of CSV for each stream.

    python -m benchmarks.rehearsal.poise_streams DATA MODELS OUT.csv "digits svhn" "tin mobilenet_v1" …

without names, all of them. DATA as `equipoise data` says; models are trained once and left in MODELS.
"""

import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.rehearsal.families import DEVICE, NAMES, Family, corrupted, load, mild, orders
from equipoise.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from equipoise.research.data.images import Images

BATCH = 50
TEMPERATURES = torch.logspace(-1, 5, 121, base=2.0)
LAST = 500
"""The images at the end of a stream that the estimate is held against."""


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, ECE and NLL."""
    return {
        "accuracy": float(accuracy(logits=logits, target=labels)),
        "ece": float(expected_calibration_error(logits=logits, target=labels)),
        "nll": float(negative_log_likelihood(logits=logits, target=labels)),
    }


def oracle(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The scores at the one temperature with the least NLL, found with the labels."""
    losses = [float(negative_log_likelihood(logits=logits / t, target=labels)) for t in TEMPERATURES]
    return scores(logits / TEMPERATURES[min(range(len(losses)), key=losses.__getitem__)], labels)


class Bench:
    """A model with its adapters."""

    def __init__(self, name: str, family: Family) -> None:
        self.name, self.family = name, family
        held = family.rehearsal
        loader = [(held.pixels[at].float().to(DEVICE), held.labels[at]) for at in _rows(len(held))]
        started = time.perf_counter()
        self.source = eq.rehearse(family.model, loader, progress=False)
        self.seconds = time.perf_counter() - started
        self.poise = eq.Poise(family.model, self.source)
        self.untempered = eq.Poise(family.model, self.source, tempering="none")

    def line(self, kind: str, stream: str, order: str, pixels: Tensor, labels: Tensor) -> dict[str, Any]:
        """Meet a stream with the source model, poise without tempering, and poise."""
        rows = orders(labels)[order]
        pixels, labels = pixels[rows], labels[rows]
        with torch.no_grad():
            plain = _answers(self.family.model, pixels)
        self.untempered.reset()
        raw = _answers(self.untempered, pixels)
        self.poise.reset()
        answers, values, by_source = [], [], 0
        for at in _rows(len(labels)):
            answers.append(self.poise(pixels[at].float().to(DEVICE)).detach().cpu())
            values.append(known(self.poise.accuracy).value)
            by_source += known(self.poise.last).answered_by == "source"
        logits = torch.cat(answers)
        estimate = known(self.poise.accuracy)
        last = float((logits[-LAST:].argmax(1) == labels[-LAST:]).double().mean())
        return {
            "model": self.name,
            "kind": kind,
            "stream": stream,
            "order": order,
            "images": len(labels),
            "source": scores(plain, labels),
            "untempered": scores(raw, labels),
            "oracle": oracle(raw, labels),
            "poise": scores(logits, labels),
            "by_source": by_source / len(values),
            "estimate": sum(values) / len(values),
            "end": {"accuracy": last, "low": estimate.low, "high": estimate.high, "inside": estimate.inside},
        }

    def jumps(self) -> list[dict[str, Any]]:
        """Accuracy over 20 batches after a jump, of poise and of batch statistics, at the start and later."""
        unseen = self.family.unseen
        count = min(len(unseen), 20 * BATCH)
        before, after = unseen.pixels[:count], unseen.pixels[-count:]
        labels = unseen.labels[-count:]
        changed = corrupted(after, [("contrast", 5), ("gaussian_noise", 5)], 2) | {"invert": 255 - after}
        methods: dict[str, eq.Adapter] = {"poise": self.poise}
        if len(self.source.norm_limits):
            methods["norm"] = eq.create("norm", self.family.model)
        lines = []
        for stream, pixels in changed.items():
            found = {}
            for method, adapter in methods.items():
                adapter.reset()
                found[f"{method} at the start"] = scores(_answers(adapter, pixels), labels)
                adapter.reset()
                _answers(adapter, before)
                found[f"{method} in mid-stream"] = scores(_answers(adapter, pixels), labels)
            lines.append({"model": self.name, "kind": "jump", "stream": stream, "images": count, **found})
        return lines


_Known = TypeVar("_Known")


def known(value: _Known | None) -> _Known:
    """A value that there is after each batch."""
    if value is None:
        raise RuntimeError("expected a value after a batch, got none")
    return value


def _rows(count: int) -> list[slice]:
    return [slice(at, at + BATCH) for at in range(0, count, BATCH)]


def _answers(model: Any, pixels: Tensor) -> Tensor:
    made = [model(pixels[at].float().to(DEVICE)).detach().cpu() for at in _rows(len(pixels))]
    return torch.cat(made)


def measured(name: str, family: Family) -> list[dict[str, Any]]:
    """Every line of a model."""
    bench, unseen = Bench(name, family), family.unseen
    lines = [
        {"model": name, "kind": "rehearsal", "seconds": bench.seconds, "error": bench.source.rehearsal.error}
    ]
    plan = [("unseen", "none", order, unseen) for order in ("shuffled", "sorted")]
    changed = mild(unseen.pixels[:1000])
    plan += [("mild", name, "shuffled", Images(x, unseen.labels[:1000])) for name, x in changed.items()]
    ways = ("shuffled", "sorted", "dirichlet") if len(family.streams) == 1 else ("shuffled",)
    plan += [("target", name, way, images) for name, images in family.streams.items() for way in ways]
    lines += [bench.line(kind, name, order, met.pixels, met.labels) for kind, name, order, met in plan]
    return lines + bench.jumps()


def add(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add rows to a CSV file; a score of poise is in the column "poise.ece"."""
    before = [pd.read_csv(path, keep_default_na=False, na_values=[""])] if path.exists() else []
    rows = pd.concat([*before, pd.json_normalize(lines)], ignore_index=True)
    rows.astype({"images": "Int64"}).to_csv(path, index=False)


def main() -> None:
    """Measure the named models, and write what came."""
    data, models, out, *names = sys.argv[1:]
    Path(models).mkdir(parents=True, exist_ok=True)
    for name in names or NAMES:
        started = time.perf_counter()
        lines = measured(name, load(name, Path(data), Path(models), workers=6))
        add(Path(out), lines)
        print(f"{name}: {len(lines)} lines in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
