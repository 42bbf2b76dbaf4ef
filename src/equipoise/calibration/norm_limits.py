"""Limits of the divergence of source batches from the running statistics: a batch beyond them is a jump."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.functional import at_least_single
from equipoise.network.normalisation import batch_norm_layers, input_of
from equipoise.network.running_statistics import SIZES, divergence

WATCHED = 8
"""The number of batch norms that are watched: the first see changes of inputs, and little of classes."""

MARGIN = 3.0
"""The ratio of the divergence of a jump to that of source batches; 2 to 4 were tried (docs/rehearsal.md)."""


class SampleMoments:
    """The first and second moments of each sample in the first batch norms of a model, gathered in forwards.

    Args:
        model: the model, in eval mode.
        most: samples after which no more are gathered.
    """

    def __init__(self, model: nn.Module, most: int = 1000) -> None:
        self.layers, self._most = batch_norm_layers(model)[:WATCHED], most
        self._noted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]  # in the last forward
        self._parts: dict[tuple[int, int], list[_Part]] = {}  # by layer, and by its uses in a forward
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether no more samples are needed."""
        return not self.layers or self._count >= self._most

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Note the inputs of the layers in forwards of this block."""
        handles = [
            layer.register_forward_pre_hook(self._noting(place), with_kwargs=True)
            for place, layer in enumerate(self.layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def name(self, classes: Tensor, good: Tensor) -> None:
        """Note the classes of the samples of the last forward, and forget those that are not good.

        A layer may see several rows of each sample, one after another. What it sees in other ways cannot be
        sorted by class, and sets no limit.
        """
        classes, good = classes.cpu(), good.cpu()
        for place, noted in enumerate(self._noted):
            for use, (first, second) in enumerate(noted):
                each, rest = divmod(len(first), len(good))
                if rest or not each:
                    continue
                own = good.repeat_interleave(each) & first.isfinite().all(1) & second.isfinite().all(1)
                part = _Part(first[own], second[own], classes.repeat_interleave(each)[own])
                self._parts.setdefault((place, use), []).append(part)
            noted.clear()
        self._count += int(good.sum())

    def _noting(self, place: int) -> Callable[..., None]:
        def note(_: _BatchNorm, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
            x = at_least_single(input_of(args, kwargs).detach())
            over = tuple(range(2, x.ndim))
            first, second = (x.mean(over), x.square().mean(over)) if over else (x, x.square())
            self._noted[place].append((first.cpu(), second.cpu()))

        return note

    def limits(self) -> Tensor:
        """The largest divergences of batches of samples that are sorted by class, for each layer and size.

        Times `MARGIN`: after one class, the running statistics are further from another than from all. A
        layer that saw no samples has limits that nothing exceeds.
        """
        found = torch.full((len(self.layers), len(SIZES)), torch.finfo(torch.float32).max)
        for place, layer in enumerate(self.layers):
            uses = [_joined(parts) for (at, _), parts in self._parts.items() if at == place]
            uses = [use for use in uses if len(use.classes)]
            for column, size in enumerate(SIZES if uses else ()):
                found[place, column] = MARGIN * max(_largest(layer, use, size) for use in uses)
        return found


class _Part(NamedTuple):
    """First and second moments of samples in a layer, and their classes."""

    first: Tensor
    second: Tensor
    classes: Tensor


def _joined(parts: list[_Part]) -> _Part:
    """All of them, sorted by class."""
    first, second, classes = (torch.cat(kind) for kind in zip(*parts, strict=True))
    order = classes.argsort(stable=True)
    return _Part(first[order], second[order], classes[order])


def _largest(layer: _BatchNorm, part: _Part, size: int) -> float:
    """The largest divergence of one batch after another from the statistics of a layer."""
    whole = max(len(part.classes) // size, 1)
    first, second = (
        rows[: whole * size].unflatten(0, (whole, -1)).mean(1) for rows in (part.first, part.second)
    )
    mean, var = (layer.get_buffer(name).float().cpu() for name in ("running_mean", "running_var"))
    return float(divergence(first, (second - first.square()).clamp(min=0), mean, var, layer.eps).max())
