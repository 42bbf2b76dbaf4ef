"""The source models of a finished run, and some images of the streams that they meet."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from equipoise.bench.plan import RunPlan, make_plan
from equipoise.bench.recipe import load_recipe
from equipoise.bench.source_model import SourceModel, model_path, pick_device, read_source_model
from equipoise.bench.sweep import find_weights, picked_shifts
from equipoise.data import Cache, Reader, open_data_set
from equipoise.data.cache import read_stored


def plans(out: Path, name: str, data: Path, targets: list[str], backbones: list[str]) -> list[RunPlan]:
    """The runs of the unadapted model that a recipe has, for its first seed."""
    recipe = load_recipe(name).narrowed(methods=["source"], seeds=[0], backbones=backbones)
    data_set = open_data_set(recipe.data, data)
    shifts = picked_shifts(data_set.shifts, targets)
    parts = dict.fromkeys(part for shift in shifts for part in (*shift.sources, shift.stream))
    stored = {part: Cache(out / "cache").store(data_set, part, None, Reader()) for part in parts}
    return make_plan(recipe, data_set, shifts, stored, find_weights(recipe, data), None)


def met(about: str) -> Iterator[tuple[RunPlan, SourceModel, Tensor, Tensor]]:
    """Each run that the command line names, with its model, and pixels and labels of its stream."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("data", type=Path)
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--backbones", nargs="*", default=[])
    parser.add_argument("--images", type=int, default=2000, help="a random choice of so many of each stream")
    given = parser.parse_args()
    device = pick_device()
    for run in plans(given.out.resolve(), given.recipe, given.data.resolve(), given.targets, given.backbones):
        images = read_stored(run.streams[0])
        path = model_path(given.out / "models", run.model.key)
        trained = read_source_model(path, device)
        rows = torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))[: given.images]
        yield run, trained, images.pixels[rows].to(device), images.labels[rows].to(device)
