"""Normalisation statistics that follow a stream: slowly while it stays as it is, at once when it jumps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.functional import at_least_single
from equipoise.network.normalisation import Measure, input_of, moments, pooling_layers

FOLLOWED = 50
"""The samples that a momentum of `following_statistics` is for."""

SIZES = (1, 2, 5, 10, 25, 50)
"""The sizes of batches that limits are measured for; between them limits are interpolated."""

WATCHED = 8
"""The number of batch norms that are watched: the first see changes of inputs, and little of classes."""

SETTLED = 1_000_000
"""The age of statistics that nothing has disturbed: those of the source model."""

MARGIN = 3.0
"""How far above the divergences of source batches a jump is; 2 to 4 were tried (docs/rehearsal.md)."""

FEWEST = 16
"""The samples that statistics take, at least, to be replaced after a jump."""


def divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, eps: float) -> Tensor:
    """Average over channels (the last dimension) of ln(1 + KL(p‖q) + KL(q‖p)), p and q normal.

    KL(p‖q) + KL(q‖p) = ½ · ((v + δ²) / w + (w + δ²) / v) − 1 with v, w the variances, each with `eps` added,
    and δ the distance of the means. The logarithm keeps single channels from deciding for all.
    """
    v, w, apart = var + eps, other_var + eps, (mean - other_mean).square()
    return (((v + apart) / w + (w + apart) / v) / 2).log().mean(-1)


class Jumps(NamedTuple):
    """What is needed to see a jump of the inputs.

    Attributes:
        limits: for each watched layer (rows) and size of batches (columns), the divergence of a batch from
            the running statistics that source data, sorted by class, stays below; (layers, len(SIZES)).
        age: samples since the last jump, a single number.
    """

    limits: Tensor
    age: Tensor

    def limit(self, place: int, rows: int) -> Tensor:
        """The limit of the layer in a place for batches of some size, interpolated over its logarithm."""
        after = next((at for at, size in enumerate(SIZES) if size >= rows), len(SIZES) - 1)
        before = max(after - 1, 0)
        span = log(SIZES[after] / SIZES[before]) if after > before else 1.0
        part = min(log(rows / SIZES[before]) / span, 1.0) if after > before else 0.0
        return torch.lerp(self.limits[place, before], self.limits[place, after], part)


class Followed:
    """The age of the statistics after what happened in a block of `following_statistics`."""

    def __init__(self, age: Tensor | None) -> None:
        self.age = age


@contextmanager
def following_statistics(
    model: nn.Module, momentum: float, measure: Measure = moments, jumps: Jumps | None = None
) -> Iterator[Followed]:
    """Normalise with the running statistics, which the batch has joined just before.

    A batch of n samples has the share a = 1 − (1 − momentum)^(n / 50) in them, so that what they remember
    does not depend on the size of batches, and a single sample can do little harm:

        mean ← mean + a · d,  var ← (1 − a) · var + a · var_batch + a · (1 − a) · d²,  d = mean_batch − mean,

    which is the variance of both together. No gradient flows through them.

    With `jumps`, a batch that is further from the running statistics of one of the first layers than its
    limit starts the average anew from that layer on: with m samples since then, the share is
    n / max(m + n, 16) until that falls below a. Every decision is made on the device.
    """
    layers = pooling_layers(model)
    places = {id(layer): place for place, layer in enumerate(layers)}
    followed = Followed(None if jumps is None else jumps.age)
    watched = 0 if jumps is None else len(jumps.limits)
    known: dict[str, Tensor] = {}

    def share_of(layer: _BatchNorm, rows: int, centre: Tensor, fresh: Tensor) -> Tensor | float:
        slow: float = 1 - (1 - momentum) ** (rows / FOLLOWED)
        if jumps is None or momentum == 0:  # statistics that shall stay as they are do so in a jump, too
            return slow
        place = places[id(layer)]
        if place < watched or not known:
            jumped = known.get("jumped", torch.zeros((), dtype=torch.bool, device=centre.device))
            if place < watched:
                mean, var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
                far = divergence(centre, fresh, mean.to(centre), var.to(fresh), layer.eps)
                jumped = jumped | (far > jumps.limit(place, rows).to(far))
            age = torch.where(jumped, 0, jumps.age.to(centre.device)) + rows
            known.update(jumped=jumped, share=(rows / age.clamp(min=FEWEST)).clamp(min=slow))
            followed.age = age.clamp(max=SETTLED)
        return known["share"].to(centre.device)

    def join(layer: _BatchNorm, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        rows, _, centre, fresh = measure(input_of(args, kwargs))
        mean, var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        share = share_of(layer, rows, centre, fresh)
        apart = centre - mean
        wide = var.to(fresh)  # itself, unless it is in half precision
        var.copy_(torch.lerp(wide, fresh, share).add_(apart.square().mul_(share * (1 - share))))
        mean.add_((apart * share).to(mean))

    handles = [layer.register_forward_pre_hook(join, with_kwargs=True) for layer in layers]
    try:
        yield followed
    finally:
        for handle in handles:
            handle.remove()


class SampleMoments:
    """The first and second moments of each sample in the first batch norms of a model, gathered in forwards.

    Args:
        model: the model, in eval mode.
        most: samples after which no more are gathered.
    """

    def __init__(self, model: nn.Module, most: int = 1000) -> None:
        self.layers, self._most = pooling_layers(model)[:WATCHED], most
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
