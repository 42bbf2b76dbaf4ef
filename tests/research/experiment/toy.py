"""A data set and a recipe small enough to run in seconds, and runs of it in this process."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equipoise.research.data import Cache, DataSet, Images, Reader, Shift, register_data_set
from equipoise.research.data.images import chosen
from equipoise.research.experiment.plan import ModelPlan, RunPlan, make_plan
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.recipe import Recipe, Training
from equipoise.research.experiment.schema import CellResult, CellScores
from equipoise.research.experiment.sweep import SweepSummary, run_recipe
from equipoise.research.experiment.trained_model import TrainedModel, model_path, read_source_model
from equipoise.research.experiment.training import train_source_model
from equipoise.research.experiment.workers import InProcess

DOMAINS = ("plain", "dark", "noisy")
CLASSES = 3
EACH = 40


def toy_images(domain: str, count: int = EACH) -> Images:
    """32-pixel grey images with a bright bar whose place is the class, in three styles."""
    generator = torch.Generator().manual_seed(DOMAINS.index(domain))
    labels = torch.arange(count) % CLASSES
    pixels = torch.rand(count, 1, 32, 32, generator=generator) * (200 if domain == "noisy" else 40)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 4 + 9 * label : 9 + 9 * label] += 30 if domain == "dark" else 55
    return Images(pixels.to(torch.uint8), labels)


class ToyDataSet(DataSet):
    """Plain, dark and noisy images."""

    about = "made by the tests"
    classes: tuple[str, ...] = ("top", "middle", "bottom")

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        images = self.images(part)
        return images.select(chosen(len(images), limit))

    def images(self, part: str) -> Images:
        """All images of a part."""
        return toy_images(part)


@register_data_set
class Toy(ToyDataSet):
    """Three domains, leave one out."""

    name = "toy"

    @property
    def shifts(self) -> list[Shift]:
        return [Shift(target, target, tuple(d for d in DOMAINS if d != target)) for target in DOMAINS]


@register_data_set
class ToyTiers(ToyDataSet):
    """One source, two corruptions at two tiers."""

    name = "toy-tiers"

    @property
    def shifts(self) -> list[Shift]:
        return [
            Shift(name, f"{name}/{tier}", ("clean",), tier) for name in ("dim", "grain") for tier in (1, 2)
        ]

    def images(self, part: str) -> Images:
        images = toy_images("plain")
        name, _, tier = part.partition("/")
        if name == "dim":
            return Images(images.pixels // (1 + int(tier)), images.labels)
        if name == "grain":
            return Images((images.pixels // 2 + toy_images("noisy").pixels // 2), images.labels)
        return images


def toy_recipe(**changes: object) -> Recipe:
    """All methods on SmallCNN, one seed, one epoch."""
    content: dict[str, object] = {
        "about": "a toy",
        "data": "toy",
        "seeds": [0],
        "training": {"optimizer": "adam", "learning_rate": 1e-3, "epochs": 1, "batch_size": 16},
        "backbones": {"smallcnn": {"weights": "random", "t_min": 1.2, "t_max": 2.75}},
        "methods": {
            "source": {"batch_size": 16},
            "tent": {"batch_size": 16},
            "dec": {"batch_size": 16},
        },
    }
    return Recipe.model_validate({**content, **changes})


SMALL: dict[str, Any] = {"temperings": ["none"], "protocols": ["online"]}
"""One cell for each method and stream."""


def go(recipe: Recipe, data: Path, out: Path | None = None, **options: Any) -> tuple[SweepSummary, str]:
    """Run a recipe in this process, by default to DATA/out: the outcome, and what was said."""
    said = StringIO()
    with RunProgress(Console(file=said, width=200)) as shown:
        outcome = run_recipe(
            recipe, data=data, out=out or data / "out", workers=InProcess(), progress=shown, **options
        )
    return outcome, said.getvalue()


def lines(out: Path) -> list[CellResult]:
    """The results of a run."""
    return [json.loads(text) for text in (out / "results.jsonl").read_text().splitlines()]


def scores(out: Path) -> dict[str, CellScores | None]:
    """The scores by key, each cell once."""
    found = lines(out)
    by_key = {line["key"]: line["scores"] for line in found}
    assert len(by_key) == len(found), "a cell is there twice"
    return by_key


def trained_runs(recipe: Recipe, data: DataSet, folder: Path, limit: int | None = None) -> list[RunPlan]:
    """The runs of a recipe, with models that are trained in the folder."""
    cache = Cache(folder / "cache")
    stored = {part: cache.store(data, part, limit, Reader()) for part in data.parts}
    runs = make_plan(recipe, data, data.shifts, stored, dict.fromkeys(recipe.backbones), limit)
    for model in {run.model for run in runs}:
        train_source_model(model, folder)
    return runs


def model_of(run: RunPlan, folder: Path) -> TrainedModel:
    """The model of a run."""
    return read_source_model(model_path(folder, run.model.key), torch.device("cpu"))


def model_plan(folder: Path, **changes: Any) -> ModelPlan:
    """The plan of a model for the noisy images, its data in the folder."""
    cache = Cache(folder / "cache")
    sources = [cache.store(Toy(folder), part, None, Reader()).path for part in ("plain", "dark")]
    settings: dict[str, Any] = {
        "key": "key",
        "name": "toy",
        "backbone": "smallcnn",
        "data": "toy",
        "classes": Toy.classes,
        "trained_on": ("plain", "dark"),
        "targets": ("noisy",),
        "seed": 0,
        "sources": tuple(sources),
        "training": Training(optimizer="adam", learning_rate=1e-3, epochs=1, batch_size=16),
        "input_size": None,
        "weights": None,
    }
    return ModelPlan(**settings | changes)


def byhand(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The five scores, written out."""
    probs = logits.detach().double().softmax(1)
    confidence, answer = probs.max(1)
    hits = (answer == labels).double()
    ece = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            ece += float(inside.double().mean() * (hits[inside].mean() - confidence[inside].mean()).abs())
    target = torch.nn.functional.one_hot(labels, logits.shape[1])
    return {
        "accuracy": float(hits.mean()),
        "ece": ece,
        "entropy": float(-(probs * probs.log2()).sum(1).mean()),
        "nll": float(-probs[torch.arange(len(labels)), labels].log().mean()),
        "brier": float((probs - target).square().sum(1).mean()),
    }
