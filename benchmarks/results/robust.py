"""The default DEC under streams that break other methods: any size of batches, sorted by class, ten passes.

    python benchmarks/results/robust.py OUT RECIPE DATA --targets svhn --images 2000 >> robust.jsonl

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import equipoise as eq
from equipoise.bench.plan import RunPlan, make_plan
from equipoise.bench.recipe import load_recipe
from equipoise.bench.source_model import SourceModel, model_path, pick_device, read_source_model
from equipoise.bench.sweep import find_weights, picked_shifts
from equipoise.data import Cache, Reader, open_data_set
from equipoise.data.cache import read_stored
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


def plans(out: Path, name: str, data: Path, targets: list[str], backbones: list[str]) -> list[RunPlan]:
    """The runs of the unadapted model that a recipe has, for its first seed."""
    recipe = load_recipe(name).narrowed(methods=["source"], seeds=[0], backbones=backbones)
    data_set = open_data_set(recipe.data, data)
    shifts = picked_shifts(data_set.shifts, targets)
    parts = dict.fromkeys(part for shift in shifts for part in (*shift.sources, shift.stream))
    stored = {part: Cache(out / "cache").store(data_set, part, None, Reader()) for part in parts}
    return make_plan(recipe, data_set, shifts, stored, find_weights(recipe, data), None)


def answered(adapter: eq.Adapter, pixels: Tensor, size: int) -> Tensor:
    """The answers to a stream in batches."""
    return torch.cat([adapter(batch.float()).detach() for batch in pixels.split(size)])


def measured(run: RunPlan, trained: SourceModel, pixels: Tensor, labels: Tensor) -> None:
    """Print a line for each kind of stream."""
    with torch.no_grad():
        plain = torch.cat([trained.model(batch.float()) for batch in pixels.split(50)])
    by_class = labels.argsort(stable=True)
    cell = run.any_cell
    tier = "" if cell["tier"] is None else f"/{cell['tier']}"
    for stream, (size, in_order, passes) in STREAMS.items():
        adapter = eq.DEC(trained.model, trained.source)
        order = by_class if in_order else torch.arange(len(labels))
        for _ in range(passes):
            logits = answered(adapter, pixels[order], size)
        after = torch.cat([adapter.predict(batch.float()) for batch in pixels.split(50)])
        line = {
            "model": f"{cell['backbone']} → {cell['target']}{tier}",
            "stream": stream,
            "images": len(labels),
            "source": round(float(accuracy(logits=plain, target=labels)), 4),
            "accuracy": round(float(accuracy(logits=logits, target=labels[order])), 4),
            "ece": round(float(expected_calibration_error(logits=logits, target=labels[order])), 4),
            "nll": round(float(negative_log_likelihood(logits=logits, target=labels[order])), 4),
            "after": round(float(accuracy(logits=after, target=labels)), 4),
        }
        print(json.dumps(line, ensure_ascii=False), flush=True)


def main() -> None:
    """Read the models and the streams, and print what came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("data", type=Path)
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--backbones", nargs="*", default=[])
    parser.add_argument("--images", type=int, default=2000, help="a random choice of so many of each stream")
    given = parser.parse_args()
    for run in plans(given.out.resolve(), given.recipe, given.data.resolve(), given.targets, given.backbones):
        images = read_stored(run.streams[0])
        path = model_path(given.out / "models", run.model.key)
        trained = read_source_model(path, run.model, images.pixels.shape[1], pick_device())
        rows = torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))[: given.images]
        measured(run, trained, images.pixels[rows], images.labels[rows])


if __name__ == "__main__":
    main()
