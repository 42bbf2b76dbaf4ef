"""Small classifiers of (N, 3, 6, 6) images into 5 classes, one for each kind of normalisation."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.network.normalisation import NORMALISATION

CLASSES = 5


def batch_norm_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, CLASSES),
    )


def layer_norm_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, CLASSES))


def group_norm_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def instance_norm_model() -> nn.Module:
    # With running statistics, which torch rewrites in eval mode too.
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))


def norm_free_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
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
        return SimpleNamespace(logits=self.inner(pixel_values * scale))


class Counting(nn.Module):
    """Counts the forwards of itself and of all its copies."""

    forwards = 0

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        Counting.forwards += 1
        logits: Tensor = self.inner(x)
        return logits


def images(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def make(kind: str = "batch_norm", seed: int = 0) -> tuple[nn.Module, eq.SourceStatistics]:
    """A model whose batch norms have seen data, and its statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[kind]()
        model.train()
        for step in range(3):
            model(images(16, seed=100 + step))
    model.eval()
    return model, measured(model, [images(32, seed=7)])


def measured(model: nn.Module, loader: list[Any]) -> eq.SourceStatistics:
    """Source statistics with all that any method needs."""
    fisher = any(isinstance(module, NORMALISATION) for module in model.modules())
    return eq.SourceStatistics.measure(model, loader, fisher=fisher, progress=False)


@lru_cache
def rehearsal_of(method: str) -> eq.Rehearsal:
    """A small rehearsal of a method, for any model of `CLASSES` classes."""
    model, source = make()
    x = images(120, seed=11)
    with torch.no_grad():
        labels = model(x).argmax(1)
    labels[::4] = (labels[::4] + 1) % CLASSES
    held_out = list(zip(x.split(20), labels.split(20), strict=True))
    made = eq.rehearse(model, held_out, method=method, source=source, shifts=8, batch_size=20, progress=False)
    return made.rehearsal_of(method)


def rehearsed(source: eq.SourceStatistics, method: str) -> eq.SourceStatistics:
    """Source statistics that hold a rehearsal of a method."""
    return replace(source, rehearsals={method: rehearsal_of(method)})


def drifted(rows: int, seed: int = 0) -> Tensor:
    """Images of another domain: brighter, with more contrast."""
    return 1.7 * images(rows, seed) + 0.8


def snapshot(adapter: eq.Adapter) -> dict[str, Tensor]:
    """Everything in the adapter that could change: its state, and every tensor of its student."""
    state: dict[str, Tensor] = dict(adapter.state_dict())
    state.update({f"student.{k}": v.detach().clone() for k, v in adapter.student.state_dict().items()})
    return state


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
