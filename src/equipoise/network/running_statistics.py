"""Normalisation statistics that follow a stream: slowly while it stays as it is, at once when it jumps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import log
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.network.normalisation import Measure, batch_norm_layers, input_of, moments

REFERENCE_BATCH = 50
"""The samples that a momentum of `following_statistics` is for."""

SIZES = (1, 2, 5, 10, 25, 50)
"""The sizes of batches that limits are measured for; between them limits are interpolated."""

SETTLED = 1_000_000
"""The age of statistics that nothing has disturbed: those of the source model."""

_STATISTICS = ("running_mean", "running_var")

FEWEST = 16
"""The samples that statistics take, at least, to be replaced after a jump."""


def settled_age(device: torch.device) -> Tensor:
    """The age of the source model's statistics."""
    return torch.tensor(SETTLED, device=device)


def divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, eps: float) -> Tensor:
    """Average over channels (the last dimension) of ln(1 + KL(p‖q) + KL(q‖p)), p and q normal.

    KL(p‖q) + KL(q‖p) = ½ · ((v + δ²) / w + (w + δ²) / v) − 1 with v, w the variances, each with `eps` added,
    and δ the distance of the means. The logarithm keeps single channels from deciding for all.
    """
    v, w, apart = var + eps, other_var + eps, (mean - other_mean).square()
    return (((v + apart) / w + (w + apart) / v) / 2).log().mean(-1)


def mixed(
    mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, share: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture that has the other part in the share a.

    mean + a · d and (1 − a) · var + a · (var' + (1 − a) · d²), d the distance of the means.
    """
    apart = other_mean - mean
    moved = apart * share
    return mean + moved, torch.lerp(var, other_var + apart * (apart - moved), share)


class Jumps(NamedTuple):
    """Limits and state of the detection of jumps of the inputs.

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


class Return(NamedTuple):
    """Statistics of the source that a batch moves back to, as far as nothing about it is new.

    Attributes:
        source: the running statistics of the source model, by their names in the model.
        new: the share of the batch in what its statistics are taken for, a single number; the source has the
            rest.
    """

    source: Mapping[str, Tensor]
    new: Tensor


class Followed:
    """The age of the statistics after what happened in a block of `following_statistics`."""

    def __init__(self, age: Tensor | None) -> None:
        self.age = age


@contextmanager
def following_statistics(
    model: nn.Module,
    momentum: float | Tensor,
    measure: Measure = moments,
    jumps: Jumps | None = None,
    back: Return | None = None,
) -> Iterator[Followed]:
    """Normalise with the running statistics, which the batch has joined just before.

    A batch of n samples has the share a = 1 − (1 − momentum)^(n / 50) in them, so that their memory
    does not depend on the size of batches, and a single sample can do little harm:

        mean ← mean + a · d,  var ← (1 − a) · var + a · var_batch + a · (1 − a) · d²,  d = mean_batch − mean,

    which is the variance of both together. No gradient flows through them; in a forward whose gradient is
    taken they are written when the block ends, since a layer that is used twice needs those of either use.

    With `jumps`, a batch that is further from the running statistics of one of the first layers than its
    limit starts the average afresh from that layer on: with m samples since then, the share is
    n / max(m + n, 16) until that falls below a. Every decision is made on the device.

    With `back`, a batch is taken for a mixture of its own samples, in the share `new`, and of source samples:
    where nothing is new the statistics return to those of the source.
    """
    layers = batch_norm_layers(model)
    places = {id(layer): place for place, layer in enumerate(layers)}
    named = {id(module): f"{prefix}." if prefix else "" for prefix, module in model.named_modules()}
    followed = Followed(None if jumps is None else jumps.age)
    watched = 0 if jumps is None else len(jumps.limits)
    known: dict[str, Tensor] = {}

    def share_of(layer: _BatchNorm, rows: int, centre: Tensor, fresh: Tensor) -> Tensor | float:
        slow = 1 - (1 - momentum) ** (rows / REFERENCE_BATCH)
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
        if back is not None:
            start, spread = (back.source[named[id(layer)] + name].to(centre) for name in _STATISTICS)
            centre, fresh = mixed(start, spread, centre, fresh, back.new.to(centre))
        if torch.is_grad_enabled():
            layer._buffers.update({name: layer.get_buffer(name).clone() for name in _STATISTICS})
        mean, var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        share = share_of(layer, rows, centre, fresh)
        # In the type of the batch's statistics: the running ones may be in half precision.
        joined = mixed(mean.to(centre), var.to(fresh), centre, fresh, share)
        mean.copy_(joined[0])
        var.copy_(joined[1])

    homes = [(layer, name, layer.get_buffer(name)) for layer in layers for name in _STATISTICS]
    handles = [layer.register_forward_pre_hook(join, with_kwargs=True) for layer in layers]
    try:
        yield followed
    finally:
        for handle in handles:
            handle.remove()
        for layer, name, home in homes:
            if (now := layer.get_buffer(name)) is not home:
                home.copy_(now)
                layer._buffers[name] = home
