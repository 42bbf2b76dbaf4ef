"""The source models of a finished run, and some images of the streams that they meet."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from equipoise.research.data import Cache, Reader, open_data_set
from equipoise.research.data.cache import read_stored
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import RunPlan, make_plan
from equipoise.research.experiment.recipe import load_recipe
from equipoise.research.experiment.schema import RAW
from equipoise.research.experiment.store import CACHE, MODELS
from equipoise.research.experiment.sweep import find_weights, picked_shifts
from equipoise.research.experiment.trained_model import (
    TrainedModel,
    model_path,
    pick_device,
    read_source_model,
)
from equipoise.research.experiment.user_files import load_modules
from equipoise.streams import make_stream

SEED = 0


def arguments(about: str, images: int) -> argparse.ArgumentParser:
    """The command line that names a finished run, its targets and networks, and a number of images."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of the run (--out)")
    parser.add_argument("recipe", help="its name, or its .yaml file")
    parser.add_argument("data", type=Path, help="the folder with the data sets (--data)")
    parser.add_argument("--targets", nargs="*", default=[], help="only these domains")
    parser.add_argument("--backbones", nargs="*", default=[], help="only these networks")
    parser.add_argument("--limit", type=int, help="that of the run, if it had one")
    parser.add_argument("--images", type=int, default=images, help="a random choice of so many of a stream")
    return parser


def plans(
    given: argparse.Namespace,
    methods: Sequence[str],
    temperings: Sequence[str],
    seeds: Sequence[int] = (SEED,),
) -> list[RunPlan]:
    """The runs of methods that the recipe of a command line has, for some seeds."""
    data, whole = given.data.resolve(), load_recipe(given.recipe)
    load_modules(whole.modules)
    some = {"seeds": list(seeds), "backbones": given.backbones}
    recipe = whole.narrowed(methods=methods, temperings=temperings, **some)
    data_set = open_data_set(recipe.data, data)
    shifts = picked_shifts(data_set.shifts, given.targets)
    parts = dict.fromkeys(part for shift in shifts for part in (*shift.sources, shift.stream))
    cache = Cache(given.out.resolve() / CACHE)
    stored = {part: cache.store(data_set, part, given.limit, Reader()) for part in parts}
    return make_plan(recipe, data_set, shifts, stored, find_weights(recipe, data), given.limit)


def trained_model(run: RunPlan, models: Path) -> TrainedModel:
    """The trained model of a run, on the device."""
    return read_source_model(model_path(models, run.model.key), pick_device())


def some_images(run: RunPlan, count: int) -> Images:
    """At most so many images of the stream of a run, in random order."""
    images = read_stored(run.streams[0])
    return images.select(make_stream([images.labels], "shuffled", SEED).rows[:count])


def met(about: str) -> Iterator[tuple[RunPlan, TrainedModel, Tensor, Tensor]]:
    """Each stream that the command line names, with its model, and pixels and labels of its images."""
    given, device = arguments(about, images=2000).parse_args(), pick_device()
    for run in plans(given, ["source"], [RAW]):
        images = some_images(run, given.images)
        yield run, trained_model(run, given.out / MODELS), images.pixels.to(device), images.labels.to(device)
