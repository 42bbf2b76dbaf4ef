"""A small classifier that learned something, streams that break adaptation, and the accuracy afterwards."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.support.models import drifted, make, measured
from tests.support.rehearsals import CLASSES, flat, flat_gap, flat_lead, held_out, rehearsed, samples, trained

SIZE = 50


@cache
def _statistics() -> eq.SourceStatistics:
    return measured(trained(), held_out())


def adapter(method: str, **options: Any) -> eq.Adapter:
    """An adapter of the small classifier; poise is rehearsed."""
    if method == "poise":
        return eq.create(method, trained(), rehearsed(), **options)
    return eq.create(method, trained(), _statistics(), tempering="none", **options)


def contented(disagreement: float | None) -> eq.Adapter:
    """Poise, rehearsed to estimate that it is far better than the source model, whatever comes.

    Args:
        disagreement: the largest share of answers that differed in rehearsal where nothing was lost; None:
            the source model was not asked in rehearsal, and there is no estimate of it.
    """
    source = rehearsed()
    made = replace(source.rehearsal, student=flat(3.0), disagreement=disagreement)
    if disagreement is None:
        alone: dict[str, Any] = {name: getattr(made, name)[:1] for name in ("prior", "coolest", "hottest")}
        made = replace(made, compared=None, source=None, lead=None, gap=None, **alone)
    else:
        estimates: dict[str, Any] = {"compared": flat(3.0), "source": flat(0.0), "lead": flat_lead(-0.45)}
        made = replace(made, gap=flat_gap(-3.0), **estimates)
    return eq.create("poise", trained(), replace(source, rehearsals={"poise": made}))


def small(method: str = "poise", **options: Any) -> eq.Adapter:
    """An adapter of a small model that learned nothing."""
    return eq.create(method, *make(), tempering="none", **options)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no file be written in the block."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        patched.setattr(Path, "write_bytes", full)
        yield


def run_to(guarded: eq.Guarded, batch: int) -> None:
    """Answer a number of batches."""
    for seed in range(batch):
        guarded(drifted(8, seed))


def clean(batches: int, seed: int = 40) -> list[tuple[Tensor, Tensor]]:
    """Labelled batches of the source domain."""
    x, y = samples(SIZE * batches, seed=seed)
    return list(zip(x.split(SIZE), y.split(SIZE), strict=True))


def accuracy_of(answer: Callable[[Tensor], Tensor], batches: list[tuple[Tensor, Tensor]]) -> float:
    """The share of right answers."""
    right = sum(int((answer(x).argmax(1) == y).sum()) for x, y in batches)
    return right / sum(len(y) for _, y in batches)


def nan_images() -> Iterator[Tensor]:
    for x, _ in clean(10):
        x[::3] = torch.nan
        yield x


def only_nan_images() -> Iterator[Tensor]:
    for _ in range(5):
        yield torch.full((SIZE, 3, 8, 8), torch.nan)


def black_images() -> Iterator[Tensor]:
    for _ in range(20):
        yield torch.zeros(SIZE, 3, 8, 8)


def one_class() -> Iterator[Tensor]:
    x, y = samples(SIZE * 20 * CLASSES, seed=5)
    yield from x[y == 1].split(SIZE)


def noise() -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        yield 3 * torch.randn(SIZE, 3, 8, 8, generator=draw)


def sorted_by_class() -> Iterator[Tensor]:
    x, y = samples(SIZE * 20, seed=6)
    yield from x[y.argsort()].split(SIZE)


def identical_images() -> Iterator[Tensor]:
    x, _ = samples(1, seed=7)
    for _ in range(20):
        yield x.expand(500, -1, -1, -1).contiguous()


def huge_values() -> Iterator[Tensor]:
    for x, _ in clean(10):
        yield 1e6 * x


FAULTS: dict[str, Callable[[], Iterator[Tensor]]] = {
    "NaN images": nan_images,
    "nothing but NaN": only_nan_images,
    "all black": black_images,
    "one class": one_class,
    "noise": noise,
    "sorted by class": sorted_by_class,
    "10,000 identical images": identical_images,
    "huge values": huge_values,
}
