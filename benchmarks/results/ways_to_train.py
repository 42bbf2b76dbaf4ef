"""Ways to train the source models: one row for each model, with its accuracy on held-out source images.

    python -m benchmarks.results.ways_to_train DATA CACHE benchmarks/results/training.csv [--workers 8]

DATA as `equipoise data` says; CACHE keeps the decoded images. Each model adds a row for each of its epochs
when it is trained; models that are in the file are not trained again. A way is judged by the held-out tenth
of the source images alone; the accuracy on the target is a second column, which nothing is chosen by.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from equipoise.research.data import Cache, Reader, open_data_set
from equipoise.research.data.cache import read_stored
from equipoise.research.data.images import Images
from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.repeatable import allow_repeatable_cuda, repeatable, seeded
from equipoise.research.experiment.trained_model import on_device, pick_device, split
from equipoise.research.experiment.training import TrainingStep, make_optimizer
from equipoise.research.models import create_backbone

DEVICE = pick_device()
KEY = ("data", "backbone", "target", "seed", "way")
LOOKED_AT = 500
"""Images of the target after each epoch; all of them after the last one."""


@dataclass(frozen=True)
class Way:
    """A way to train; the defaults are those of the recipes.

    Attributes:
        batch_size: of a step; Keras' default is 32.
        rate: of learning.
        epochs: passes over the source images.
        timm_head: whether the last layer starts as timm draws it, uniform within 1/√classes, as it did before
            this search; the library starts it as Keras' dense layers (Glorot).
        flattened: whether the last layer takes all positions of the features, not their average.
        momentum: of batch-norm statistics; Keras' .99 is PyTorch's .01.
        frozen: whether batch-norm statistics stay those of ImageNet.
        augmented: whether images are flipped, enlarged and moved at random.
        keras_layers: whether every layer of SmallCNN starts, and its batch norm divides, as in Keras.
    """

    batch_size: int = 64
    rate: float = 2e-4
    epochs: int = 15
    timm_head: bool = False
    flattened: bool = False
    momentum: float = 0.1
    frozen: bool = False
    augmented: bool = False
    keras_layers: bool = False


KERAS = Way(batch_size=32, momentum=0.01)
WAYS = {
    "timm's start of the last layer": Way(timm_head=True),
    "recipe": Way(),
    "momentum .01": Way(momentum=0.01),
    "batches of 32": Way(batch_size=32),
    "flattened with momentum .01": Way(flattened=True, momentum=0.01),
    "flattened with momentum .01 in batches of 32": replace(KERAS, flattened=True),
    "frozen statistics": Way(frozen=True),
    "augmented with momentum .01": Way(momentum=0.01, augmented=True),
    "rate 5e-5 with momentum .01": Way(momentum=0.01, rate=5e-5),
}
DIGIT_WAYS = {
    "recipe": Way(rate=1e-3, epochs=5),
    "batches of 32": Way(rate=1e-3, epochs=5, batch_size=32),
    "momentum .01": Way(rate=1e-3, epochs=5, momentum=0.01),
    "Keras' layers with momentum .01": Way(rate=1e-3, epochs=5, momentum=0.01, keras_layers=True),
    "Keras' layers with momentum .01 in batches of 32": Way(
        rate=1e-3, epochs=5, momentum=0.01, keras_layers=True, batch_size=32
    ),
    "augmented": Way(rate=1e-3, epochs=5, augmented=True),
}


@dataclass(frozen=True)
class Plan:
    """Models to train: each way, seed and target."""

    data: str
    backbone: str
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    ways: dict[str, Way]


@dataclass(frozen=True)
class Task:
    """A model to train."""

    data: str
    backbone: str
    target: str
    seed: int
    name: str
    way: Way
    sources: tuple[Path, ...]
    stream: Path
    classes: int
    weights: Path | None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its rows that tell the model from all others."""
        return self.data, self.backbone, self.target, str(self.seed), self.name


class Augmented(nn.Module):
    """A model that sees flipped, enlarged and moved images in training."""

    def __init__(self, model: nn.Module, flips: bool) -> None:
        super().__init__()
        self.model, self.flips = model, flips

    def forward(self, images: Tensor) -> Tensor:
        """The model's logits."""
        if self.training:
            n, device = len(images), images.device
            scale = 1 - 0.3 * torch.rand(n, device=device)
            turned = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0) if self.flips else 1.0
            moved = (1 - scale).unsqueeze(1) * (torch.rand(n, 2, device=device) * 2 - 1)
            zero = torch.zeros_like(scale)
            rows = [torch.stack([scale * turned, zero, moved[:, 0]], 1)]
            rows += [torch.stack([zero, scale, moved[:, 1]], 1)]
            grid = affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
            images = grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
        logits: Tensor = self.model(images)
        return logits


def prepared(model: nn.Module, way: Way, side: int) -> nn.Module:
    """The network as a way wants it before training."""
    if way.flattened:
        body: Any = model.get_submodule("body")
        with torch.no_grad():
            shape = body.forward_features(torch.zeros(1, 3, side, side)).shape
        body.global_pool = nn.Flatten()
        body.classifier = nn.Linear(shape[1:].numel(), body.classifier.out_features)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for layer in layers if way.keras_layers else layers[-1:] if way.flattened else []:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    if way.timm_head:
        limit = len(layers[-1].weight) ** -0.5
        nn.init.uniform_(layers[-1].weight, -limit, limit)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = way.momentum
        if way.keras_layers:
            norm.eps = 1e-3
    return model


def train(task: Task) -> list[dict[str, Any]]:
    """Train a model and note both accuracies after each epoch."""
    allow_repeatable_cuda()
    torch.set_num_threads(1)
    way, started = task.way, time.perf_counter()
    images = Images.join([read_stored(path) for path in task.sources])
    parts = split(images.labels, task.seed)
    target, held = read_stored(task.stream), images.select(parts.held_out)
    some = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    with repeatable():
        with seeded(task.seed):
            model = create_backbone(
                task.backbone, task.classes, weights=task.weights, in_channels=images.pixels.shape[1]
            )
            model = prepared(model, way, images.pixels.shape[-1])
        model = on_device(model, DEVICE)
        whole = Augmented(model, flips=task.data == "pacs") if way.augmented else model
        settings = Training(
            optimizer="adam" if task.backbone == "smallcnn" else "rmsprop",
            learning_rate=way.rate,
            epochs=way.epochs,
            batch_size=way.batch_size,
        )
        train_mode(whole, way)
        torch.use_deterministic_algorithms(not way.augmented)
        shown = images.select(parts.trained)
        step = TrainingStep(whole, make_optimizer(model, settings), shown, way.batch_size)
        rows = []
        for epoch in range(way.epochs):
            draw = torch.Generator().manual_seed(task.seed * 100_003 + epoch)
            order = torch.randperm(len(parts.trained), generator=draw).to(DEVICE)
            train_mode(whole, way)
            with seeded(task.seed, epoch):
                for batch in order.split(way.batch_size):
                    if len(batch) > 1:
                        step(batch)
            last = epoch + 1 == way.epochs
            model.eval()
            rows.append(
                {
                    "data": task.data,
                    "backbone": task.backbone,
                    "target": task.target,
                    "seed": task.seed,
                    "way": task.name,
                    "epoch": epoch + 1,
                    "held_out": round(hits(model, held), 4),
                    "target_accuracy": round(hits(model, target if last else target.select(some)), 4),
                    "seconds": round(time.perf_counter() - started, 1),
                }
            )
    return rows


def train_mode(model: nn.Module, way: Way) -> None:
    """Training mode, but for batch norms whose statistics are frozen."""
    model.train()
    if way.frozen:
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.eval()


@torch.no_grad()
def hits(model: nn.Module, images: Images) -> float:
    """The accuracy of a model in evaluation mode."""
    right = 0
    for pixels, labels in zip(images.pixels.split(250), images.labels.split(250), strict=True):
        right += int((model(pixels.to(DEVICE).float()).argmax(1).cpu() == labels).sum())
    return right / len(images)


def tasks(plan: Plan, given: argparse.Namespace) -> list[Task]:
    """The models of a plan, in order."""
    data_set = open_data_set(plan.data, given.data)
    parts = dict.fromkeys(p for s in data_set.shifts for p in (*s.sources, s.stream))
    cache, reader = Cache(given.cache), Reader(workers=given.workers)
    stored = {part: cache.store(data_set, part, given.limit, reader) for part in parts}
    weights = given.data / "weights" / f"{plan.backbone}.safetensors"
    return [
        Task(
            plan.data,
            plan.backbone,
            shift.target,
            seed,
            name,
            way,
            tuple(stored[part].path for part in shift.sources),
            stored[shift.stream].path,
            len(data_set.classes),
            None if plan.backbone == "smallcnn" else weights,
        )
        for name, way in plan.ways.items()
        for seed in plan.seeds
        for shift in data_set.shifts
        if shift.target in plan.targets
    ]


def trained_before(path: Path) -> set[tuple[str, ...]]:
    """The keys of the models in a CSV file, if it is there."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in KEY) for row in csv.DictReader(file)}


def add(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a CSV file."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


PLANS = (
    "pacs:mobilenet_v1:art_painting:0:all",
    "digits:smallcnn:mnist,usps,svhn:0:all",
    "pacs:efficientnet_b0:art_painting:0:recipe,timm's start of the last layer",
)
"""Data set, network, targets, seeds and ways."""


def read_plan(text: str) -> Plan:
    """A plan from the command line, as in `PLANS`."""
    data, backbone, targets, seeds, ways = text.split(":")
    known = DIGIT_WAYS if data == "digits" else WAYS
    chosen = known if ways == "all" else {name: known[name] for name in ways.split(",")}
    return Plan(data, backbone, tuple(targets.split(",")), tuple(map(int, seeds.split(","))), chosen)


def main() -> None:
    """Train the models of all plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--limit", type=int, help="the most images of each domain")
    parser.add_argument("--epochs", type=int, help="in place of those of the ways")
    parser.add_argument("--plan", nargs="+", default=PLANS, help="data:backbone:targets:seeds:ways")
    given = parser.parse_args()
    todo = [task for plan in map(read_plan, given.plan) for task in tasks(plan, given)]
    if given.epochs:
        todo = [replace(task, way=replace(task.way, epochs=given.epochs)) for task in todo]
    done, failed = trained_before(given.out), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
        running = {pool.submit(train, task): task for task in todo if task.key not in done}
        for future in as_completed(running):
            if error := future.exception():
                failed += 1
                print(f"{' '.join(running[future].key)}: failed: {error!r}", file=sys.stderr, flush=True)
                continue
            rows = future.result()
            add(given.out, rows)
            print(*rows[-1].values(), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
