"""Small classifiers of (N, 3, 6, 6) images into 5 classes, one for each kind of normalisation, and images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.calibration.rehearsal import Rehearsal
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Method
from equipoise.errors import ModelError
from equipoise.network.normalisation import NORMALISATION
from equipoise.registry import method_class
from equipoise.rehearsal.rehearse import rehearse

NUM_CLASSES = 5
BATCH_SIZES = (8, 1, 2, 1, 8, 1, 3)
"""A stream with batches of one sample and a ragged end."""

_REHEARSALS: dict[tuple[type[Method], str], Rehearsal] = {}


def batch_norm_model() -> nn.Module:
    """A classifier with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, NUM_CLASSES),
    )


def layer_norm_model() -> nn.Module:
    """A classifier with layer norm."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(108, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, NUM_CLASSES)
    )


def group_norm_model() -> nn.Module:
    """A classifier with group norm."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, NUM_CLASSES)
    )


def instance_norm_model() -> nn.Module:
    """A classifier with instance norm; its running statistics are rewritten by torch in eval mode too."""
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, NUM_CLASSES))


def norm_free_model() -> nn.Module:
    """A classifier without normalisation."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(108, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, NUM_CLASSES)
    )


SMALL_MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": batch_norm_model,
    "layer_norm": layer_norm_model,
    "group_norm": group_norm_model,
    "instance_norm": instance_norm_model,
    "norm_free": norm_free_model,
}


class WithLogits(nn.Module):
    """Takes keyword inputs and returns an object with .logits, as Hugging Face models do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor, scale: float = 1.0) -> Any:
        """An object with the logits of images."""
        return SimpleNamespace(logits=self.inner(pixel_values * scale))


def images(rows: int, seed: int = 0) -> Tensor:
    """Images of the source domain."""
    return torch.randn(rows, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def drifted(rows: int, seed: int = 0) -> Tensor:
    """Images of another domain: brighter, with more contrast."""
    return 1.7 * images(rows, seed) + 0.8


def drifted_stream() -> list[Tensor]:
    """Batches of another domain, of several sizes."""
    return [drifted(rows, seed) for seed, rows in enumerate(BATCH_SIZES)]


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator in the block; afterwards it is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def make(kind: str = "batch_norm", seed: int = 0) -> tuple[nn.Module, SourceStatistics]:
    """A model whose batch norms have seen data, and its statistics; copies that belong to the caller."""
    return deepcopy(_made(kind, seed))


@cache
def _made(kind: str, seed: int) -> tuple[nn.Module, SourceStatistics]:
    with seeded_torch(seed):
        model = SMALL_MODELS[kind]()
        model.train()
        for step in range(3):
            model(images(16, seed=100 + step))
    model.eval()
    return model, measured(model, [images(32, seed=7)])


def measured(model: nn.Module, loader: list[Any]) -> SourceStatistics:
    """Source statistics with everything that any method needs."""
    fisher = any(isinstance(module, NORMALISATION) for module in model.modules())
    try:
        return SourceStatistics.measure(model, loader, fisher=fisher, features=True, progress=False)
    except ModelError:  # no linear head
        return SourceStatistics.measure(model, loader, fisher=fisher, progress=False)


def _rehearsal(method: str, options: dict[str, Any]) -> Rehearsal:
    """A small rehearsal of a method, for any model of `NUM_CLASSES` classes."""
    model, source = make()
    x = images(120, seed=11)
    with torch.no_grad():
        labels = model(x).argmax(1)
    labels[::4] = (labels[::4] + 1) % NUM_CLASSES
    held_out = list(zip(x.split(20), labels.split(20), strict=True))
    given: dict[str, Any] = {"shifts": 8, "batch_size": 20, "progress": False, **options}
    made = rehearse(model, held_out, method=method, source=source, check_held_out=False, **given)
    return made.rehearsal_of(method)


def rehearsed(source: SourceStatistics, method: str, **options: Any) -> SourceStatistics:
    """Source statistics that hold a rehearsal of a method with options."""
    key = (method_class(method), repr(sorted(options.items())))
    if key not in _REHEARSALS:
        _REHEARSALS[key] = _rehearsal(method, options)
    return replace(source, rehearsals={method: _REHEARSALS[key]})
