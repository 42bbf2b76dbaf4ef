"""Services over a small model that is rehearsed once, and batches for them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise.production.server.interface import Prediction
from equipoise.production.server.limits import Limits
from equipoise.production.server.service import Service
from tests.support.rehearsals import held_out, samples, trained
from tests.support.waiting import HANG

PATIENT = 1000 * HANG
"""A latency bound in ms that no test reaches by chance."""


@cache
def rehearsed() -> eq.SourceStatistics:
    return eq.rehearse(trained(), held_out(), shifts=8, progress=False)


def adapter(method: str = "poise", **options: Any) -> eq.Adapter:
    return eq.create(method, trained(), rehearsed() if method == "poise" else None, **options)


def service(folder: Path, **options: Any) -> Service:
    guarded, own = options.pop("guarded", True), options.pop("adapter", None)
    limits = Limits(**{"latency_ms": PATIENT, **options})
    return Service(own or adapter(), folder, limits=limits, guarded=guarded)


def batch(seed: int, rows: int = 8, shift: float = 0.5) -> np.ndarray[Any, Any]:
    images: np.ndarray[Any, Any] = (samples(rows, seed=2000 + seed)[0] + shift).numpy()
    return images


def labels(seed: int, rows: int = 8) -> list[int]:
    return [int(label) for label in samples(rows, seed=2000 + seed)[1]]


def ask(service: Service, stream: str, inputs: Any) -> Prediction:
    return service.submit(stream, inputs).result(HANG)


def same(one: Prediction, other: Prediction) -> bool:
    """Whether two answers are equal in all but their ids."""
    facts = ("classes", "temperature", "accuracy", "answered_by", "mode", "learned", "reason")
    equal = np.array_equal(one.probabilities, other.probabilities, equal_nan=True)
    return equal and all(getattr(one, name) == getattr(other, name) for name in facts)


def states(folder: Path) -> list[Path]:
    """The states of all streams, oldest first."""
    found = folder.glob("streams/*/state-*.safetensors")
    return sorted(found, key=lambda path: int(path.stem.split("-")[1]))


def judged(own: Service) -> float:
    """The weight of the labels in the guard's test of the stream "a"."""
    state = own._with("a", lambda _, live: live.guard.state() if live.guard else {})
    weight: float = state["watch"]["labels"]["process"]["weight"]
    return weight


def counted(own: Service) -> int:
    """The labels that count for the estimates of the stream "a"."""
    return own._with("a", lambda *_: own._adapter.labels)


def probabilities(logits: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = logits.softmax(1).numpy()
    return found
