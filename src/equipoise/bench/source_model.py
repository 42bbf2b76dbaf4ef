"""Source models on disk: trained once, stored with their statistics, read by every run."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise.bench.held_out import split
from equipoise.bench.plan import ModelPlan
from equipoise.bench.repeatable import seeded
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.data.cache import read_stored
from equipoise.data.images import Images
from equipoise.errors import ModelError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.metrics import expected_calibration_error
from equipoise.models import create_backbone
from equipoise.network.named_tensors import part, prefixed

_KIND, _VERSION = "equipoise source model", 1
_MODEL = "model."
MEASURE_BATCH = 200
FISHER_IMAGES, FISHER_BATCH = 2000, 64
"""As EATA's authors measure it."""
FIXED_IMAGES = 10_000
"""The most source images that the fixed temperature is fitted on: its grid is coarser than their noise."""


@dataclass(frozen=True)
class SourceModel:
    """A trained model in evaluation mode, its statistics, and its best fixed temperature on the source."""

    model: nn.Module
    source: SourceStatistics
    fixed_tau: float


def model_path(folder: Path, key: str) -> Path:
    """The file of a trained model."""
    return folder / f"{key}.safetensors"


def is_source_model(path: Path) -> bool:
    """Whether the file of a trained model exists and is complete."""
    if not path.exists():
        return False
    try:
        read_tensors(path, _KIND, _VERSION)
    except StateError:
        return False
    return True


def pick_device() -> torch.device:
    """The first GPU that this process may use, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def source_images(plan: ModelPlan) -> Images:
    """The images that the model is trained on, and its statistics are measured on."""
    images = _all_source_images(plan)
    return images.select(split(images.labels, plan.seed).trained)


def held_out_images(plan: ModelPlan) -> Images:
    """The source images that the model is not trained on."""
    images = _all_source_images(plan)
    return images.select(split(images.labels, plan.seed).held_out)


def _all_source_images(plan: ModelPlan) -> Images:
    return Images.join([read_stored(path) for path in plan.sources])


def new_model(plan: ModelPlan, channels: int, *, load: bool = True) -> nn.Module:
    """The model before training, or to load; the seed alone decides what is random in it."""
    with seeded(plan.seed):
        return create_backbone(
            plan.backbone,
            plan.num_classes,
            weights=plan.weights,
            in_channels=channels,
            input_size=plan.input_size,
            load=load,
        )


def write_source_model(path: Path, model: nn.Module, images: Images, seed: int) -> None:
    """Measure a trained model on its training images, without augmentation, and write both to one file."""
    device = next(model.parameters()).device
    loader = (rows.to(device).float() for rows in images.pixels.split(MEASURE_BATCH))
    answers: list[Tensor] = []
    hook = model.register_forward_hook(lambda _, __, logits: answers.append(logits.cpu()))
    source = SourceStatistics.measure(model, loader, progress=False)
    hook.remove()
    logits = torch.cat(answers)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    few = (images.pixels[rows].to(device).float() for rows in order[:FISHER_IMAGES].split(FISHER_BATCH))
    try:
        fisher = SourceStatistics.measure(model, few, fisher=True, progress=False).fisher
    except ModelError:
        fisher = {}  # no normalisation layers: EATA raises its own error
    source = replace(source, fisher=fisher)
    chosen = order[:FIXED_IMAGES].sort().values
    tau = best_fixed_temperature(logits[chosen], images.labels[chosen])
    tensors = {**prefixed(_MODEL, model.state_dict()), **source.tensors()}
    write_tensors(path, _KIND, _VERSION, tensors, {"source": source.to_json(), "fixed_tau": repr(tau)})


def best_fixed_temperature(logits: Tensor, labels: Tensor) -> float:
    """The one temperature with the least ECE on labelled images: argmin_T ECE(z / T), T from 1/8 to 8.

    The paper's ablation fits it on the source-domain training set. ECE has no useful slope, so this tries
    every 2 %; of equally good ones it takes the one nearest to 1.
    """
    grid = torch.arange(-105, 106, dtype=torch.float64).mul(0.0198).exp()
    errors = [
        (float(expected_calibration_error(logits=logits.double() / t, target=labels)), abs(float(t.log())))
        for t in grid
    ]
    return float(grid[min(range(len(grid)), key=errors.__getitem__)])


@lru_cache(maxsize=2)
def read_source_model(path: Path, plan: ModelPlan, channels: int, device: torch.device) -> SourceModel:
    """A trained model; the last ones stay in memory, since runs of one model come one after the other."""
    tensors, text = read_tensors(path, _KIND, _VERSION)
    model = new_model(plan, channels, load=False)
    model.load_state_dict(part(tensors, _MODEL))
    source = SourceStatistics.from_parts(text["source"], tensors)
    return SourceModel(model.to(device).eval(), source, float(text["fixed_tau"]))
