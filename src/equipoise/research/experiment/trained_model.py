"""Source models on disk: trained once, stored with their statistics, read by every run and by the user."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import ModelError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.json_form import from_json
from equipoise.metrics import expected_calibration_error
from equipoise.network.modules import fingerprint
from equipoise.network.named_tensors import part, prefixed
from equipoise.research.data.cache import read_stored
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import ModelPlan
from equipoise.research.experiment.repeatable import seeded
from equipoise.research.experiment.store import MODELS
from equipoise.research.models import create_backbone

if TYPE_CHECKING:
    import pandas as pd

_KIND, _VERSION = "equipoise source model", 2
_MODEL = "model."
COLUMNS = ("file", "backbone", "data", "trained_on", "targets", "seed", "epochs")
"""Of `models_table`."""
MEASURE_BATCH = 200
ONE_IN = 10
"""One image in so many is held out."""
FISHER_IMAGES, FISHER_BATCH = 2000, 64
"""As EATA's authors measure it."""
FIXED_IMAGES = 10_000
"""The most source images that the fixed temperature is fitted on: its grid is coarser than their noise."""


@dataclass(frozen=True)
class TrainedModelInfo:
    """The description of a trained model in its file.

    Attributes:
        backbone: the network's name.
        weights: its weights before training: "random", timm's from the "hub", or from a "file".
        channels: of the images.
        input_size: the side that images are resized to inside the model, or None.
        data: the data set's name.
        classes: the names of the classes.
        trained_on: the parts of the data set that the model was trained on.
        targets: the domains that the model is for: those that it was not trained on.
        seed: of the training.
        epochs: of the training.
    """

    backbone: str
    weights: Literal["random", "hub", "file"]
    channels: int
    input_size: int | None
    data: str
    classes: tuple[str, ...]
    trained_on: tuple[str, ...]
    targets: tuple[str, ...]
    seed: int
    epochs: int

    @classmethod
    def from_header(cls, text: Mapping[str, str]) -> "TrainedModelInfo":
        """The description in the header of a file."""
        return from_json(cls, json.loads(text["about"]))


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in evaluation mode, with its statistics on the source.

    Attributes:
        model: the classifier of raw images, with values from 0 to 255.
        source: its statistics on the source, for `equipoise.create`.
        fixed_tau: its best fixed temperature on the source.
        info: its description.
    """

    model: nn.Module
    source: SourceStatistics
    fixed_tau: float
    info: TrainedModelInfo


def model_path(folder: Path, key: str) -> Path:
    """The file of a trained model."""
    return folder / f"{key}.safetensors"


def pick_device() -> torch.device:
    """The first GPU that this process may use, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layout(device: torch.device) -> torch.memory_format:
    """The memory format of images and kernels: on a GPU convolutions are faster with channels last."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model there, with the weights of its convolutions in the order that is fastest there."""
    model.to(device)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout(device))
    return model


class Split(NamedTuple):
    """Rows of the source images, each in ascending order.

    Attributes:
        trained: the rows for training.
        held_out: the rows that the model is not trained on.
    """

    trained: Tensor
    held_out: Tensor


def split(labels: Tensor, seed: int) -> Split:
    """Hold one image in ten out, by class: of n images of a class n/10, rounded up or down.

    The images are shuffled, sorted by class, and every tenth of them is taken, from a random one of the first
    ten on, so that the number in all is right however small the classes are. A class of one image keeps it
    for training. The seed alone decides.
    """
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(len(labels), generator=draw)
    by_class = mixed[labels[mixed].argsort(stable=True)]
    taken = by_class[int(torch.randint(ONE_IN, (), generator=draw)) :: ONE_IN]
    aside = torch.zeros(len(labels), dtype=torch.bool)
    if len(taken):
        aside[taken] = labels.bincount()[labels[taken]] > 1
    rows = torch.arange(len(labels))
    return Split(rows[~aside], rows[aside])


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


def new_model(plan: ModelPlan, channels: int) -> nn.Module:
    """The model before training; the seed alone decides what is random in it."""
    with seeded(plan.seed):
        return create_backbone(
            plan.backbone,
            len(plan.classes),
            weights=plan.weights,
            in_channels=channels,
            input_size=plan.input_size,
        )


def write_source_model(path: Path, model: nn.Module, images: Images, plan: ModelPlan) -> None:
    """Measure a trained model on its training images, without augmentation, and write both to one file."""
    device = next(model.parameters()).device
    source, logits = _measured(model, images)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(plan.seed))
    few = (images.pixels[rows].to(device).float() for rows in order[:FISHER_IMAGES].split(FISHER_BATCH))
    try:
        fisher = SourceStatistics.measure(model, few, fisher=True, progress=False).fisher
    except ModelError:
        fisher = {}  # no normalisation layers: EATA raises its own error
    source = replace(source, fisher=fisher)
    chosen = order[:FIXED_IMAGES].sort().values
    tau = best_fixed_temperature(logits[chosen], images.labels[chosen])
    tensors = {**prefixed(_MODEL, model.state_dict()), **source.tensors()}
    about = json.dumps(asdict(_info(plan, images.pixels.shape[1])))
    text = {"source": source.to_json(), "fixed_tau": repr(tau), "about": about}
    write_tensors(path, _KIND, _VERSION, tensors, text)


def _measured(model: nn.Module, images: Images) -> tuple[SourceStatistics, Tensor]:
    """Statistics of a model on images, with those of its features where it has a linear head; its logits."""
    device = next(model.parameters()).device
    answers: list[Tensor] = []

    def measure(features: bool) -> SourceStatistics:
        answers.clear()
        loader = (rows.to(device).float() for rows in images.pixels.split(MEASURE_BATCH))
        return SourceStatistics.measure(model, loader, features=features, progress=False)

    hook = model.register_forward_hook(lambda _, __, logits: answers.append(logits.cpu()))
    try:
        source = measure(features=True)
    except ModelError:  # no linear head: a method that needs its features raises its own error
        source = measure(features=False)
    finally:
        hook.remove()
    return source, torch.cat(answers)


def _info(plan: ModelPlan, channels: int) -> TrainedModelInfo:
    return TrainedModelInfo(
        backbone=plan.backbone,
        weights="random" if plan.weights is None else "hub" if plan.weights == "hub" else "file",
        channels=channels,
        input_size=plan.input_size,
        data=plan.data,
        classes=plan.classes,
        trained_on=plan.trained_on,
        targets=plan.targets,
        seed=plan.seed,
        epochs=plan.training.epochs,
    )


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


def load_source_model(path: str | os.PathLike[str], device: torch.device | str | None = None) -> TrainedModel:
    """A trained model from its file in OUT/models, on the GPU if there is one, or on the given device.

    Raises StateError where the file is damaged or of another kind: also where the weights are not those that
    the statistics in the file were measured with.
    """
    tensors, text = read_tensors(path, _KIND, _VERSION)
    try:
        info = TrainedModelInfo.from_header(text)
        source = SourceStatistics.from_parts(text["source"], tensors)
        fixed_tau = float(text["fixed_tau"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: damaged header: {error!r}") from error
    with seeded(info.seed):  # the weights that are drawn here are replaced
        model = create_backbone(
            info.backbone,
            len(info.classes),
            weights=Path(path) if info.weights == "file" else None,
            in_channels=info.channels,
            input_size=info.input_size,
            load=False,
        )
    try:
        model.load_state_dict(part(tensors, _MODEL))
    except RuntimeError as error:
        raise StateError(f"{path}: its tensors are not those of {info.backbone}: {error}") from error
    model.to(pick_device() if device is None else device).eval()
    if (came := fingerprint(model)) != source.model_fingerprint:
        raise StateError(
            f"{path}: damaged weights: expected fingerprint {source.model_fingerprint[:12]}, got {came[:12]}"
        )
    return TrainedModel(model, source, fixed_tau, info)


@lru_cache(maxsize=2)
def read_source_model(path: Path, device: torch.device) -> TrainedModel:
    """A trained model with its kernels in the order that is fastest on the device.

    The last ones stay in memory, since runs of one model come one after the other.
    """
    trained = load_source_model(path, device)
    on_device(trained.model, device)
    return trained


def models_table(out: str | os.PathLike[str]) -> "pd.DataFrame":
    """A row for each trained model of a run, with the file that `load_source_model` takes.

    Args:
        out: the folder that `equipoise run --out` was given.
    """
    import pandas as pd  # workers, which read models too, do without

    described = ((path, _described(path)) for path in (Path(out) / MODELS).glob("*.safetensors"))
    rows = [
        {
            **vars(info),
            "file": str(path),
            "trained_on": " + ".join(info.trained_on),
            "targets": ", ".join(info.targets),
        }
        for path, info in described
        if info is not None
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(["data", "backbone", "trained_on", "seed"], ignore_index=True)


def _described(path: Path) -> TrainedModelInfo | None:
    """The description in a file; None for a rehearsal, an unfinished training or a damaged file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            return TrainedModelInfo.from_header(dict(opened.metadata() or {}))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
