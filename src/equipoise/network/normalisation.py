"""Normalisation layers on batch, blended or frozen statistics; layers are found by type, never by name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from equipoise.functional import at_least_single

WITH_STATISTICS = (_NormBase,)  # batch, synchronised batch and instance norm, and their subclasses
NORMALISATION = (*WITH_STATISTICS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of the normalisation layers, by their names in the model's state."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, module in model.named_modules()
        if isinstance(module, WITH_STATISTICS)
        for name, buffer in module.named_buffers(recurse=False)
    }


@contextmanager
def batch_statistics(model: nn.Module, momentum: float, rows: int) -> Iterator[None]:
    """Normalise with the statistics of the batch, and move the running ones towards them by `momentum`.

    Only normalisation layers enter train mode: dropout and stochastic depth stay as they are. `momentum` is
    PyTorch's: running ← (1 − momentum) · running + momentum · batch (Keras's 0.99 is 0.01 here). A batch of
    one row has no statistics of its own: it is normalised by the running ones, which stay. With a momentum
    of 0 the running ones stay, and the batch is not counted.
    """
    layers = [module for module in model.modules() if isinstance(module, WITH_STATISTICS) and rows > 1]
    before = [(layer.training, layer.momentum) for layer in layers]
    # Where that is all a layer does, batches are counted in one go: layer by layer it would be a kernel each.
    counting = [(m, m.num_batches_tracked) for m in layers if type(m).forward is _BatchNorm.forward]
    tracked = [number for _, number in counting if number is not None]
    try:
        for layer in layers:  # past torch's `__setattr__`, which takes ten times as long
            vars(layer).update(training=True, momentum=momentum)
        for layer, _ in counting:
            layer._buffers["num_batches_tracked"] = None
        yield
        if tracked and momentum:
            torch._foreach_add_(tracked, 1)
    finally:
        for layer, (training, old) in zip(layers, before, strict=True):
            vars(layer).update(training=training, momentum=old)
        for layer, number in counting:
            layer._buffers["num_batches_tracked"] = number


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Answer in eval mode, without gradients or updates of statistics; each module's mode is restored."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), frozen_statistics(model):
            yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics as they are: torch's instance norm rewrites them even in eval mode."""
    buffers = [b for module in model.modules() if isinstance(module, _InstanceNorm) for b in module.buffers()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)


def batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms with running statistics, which normalise a sample by the others of its batch."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


_TINY = 1e-12


class Moments(NamedTuple):
    """Moments of the inputs of a layer.

    Attributes:
        rows: how many rows there are.
        each: how many values each channel has.
        mean: their mean, by channel.
        var: their biased variance, by channel.
    """

    rows: int
    each: int
    mean: Tensor
    var: Tensor


def moments(x: Tensor) -> Moments:
    """The moments of (N, C, ...) inputs, at least in single precision; no gradient."""
    wide = at_least_single(x.detach())
    rows, each = len(x), x.numel() // x.shape[1]
    if x.is_cuda:  # batch norm's own kernel is several times as fast there as a general reduction
        mean, scale = torch.batch_norm_stats(wide, _TINY)  # scale = 1 / √(var + tiny)
        return Moments(rows, each, mean, (scale.square().reciprocal() - _TINY).clamp(min=0))
    var, mean = torch.var_mean(wide, [dim for dim in range(x.ndim) if dim != 1], correction=0)
    return Moments(rows, each, mean, var)


Measure: TypeAlias = Callable[[Tensor], Moments]


@contextmanager
def blended_statistics(
    model: nn.Module, source: dict[str, Tensor], prior: float, momentum: float, measure: Measure = moments
) -> Iterator[None]:
    """Normalise with a blend of the source's statistics, worth `prior` samples, and those of the batch.

    blend = (prior · source + n · batch) / (prior + n) for mean and variance, n the rows of the batch. The
    running statistics move towards it by `momentum`. `source` has the source's values by their names in the
    model.
    """
    named = {id(module): prefix for prefix, module in model.named_modules()}
    # The running statistics and their next values, while tensors with the blend are in their places: a
    # backward needs the blend unchanged.
    held: dict[tuple[_BatchNorm, str], tuple[Tensor, Tensor]] = {}

    def blend(layer: _BatchNorm, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        rows, each, mean, var = measure(input_of(args, kwargs))
        share = rows / (prior + rows)
        prefix = f"{named[id(layer)]}." if named[id(layer)] else ""
        for name, moment in {"running_mean": mean, "running_var": var}.items():
            buffer = layer.get_buffer(name)
            start = source[prefix + name].to(buffer, non_blocking=True)
            unbiased = moment * (each / max(each - 1, 1)) if name == "running_var" else moment
            towards = torch.lerp(start, unbiased.to(buffer), share)
            held[layer, name] = buffer, torch.lerp(buffer, towards, momentum)
            layer._buffers[name] = torch.lerp(start, moment.to(buffer), share)

    def follow(layer: _BatchNorm, _inputs: object, _output: object) -> None:
        for name in ("running_mean", "running_var"):
            buffer, following = held.pop((layer, name))
            layer._buffers[name] = buffer.copy_(following)

    handles = []
    try:
        for layer in batch_norm_layers(model):
            handles.append(layer.register_forward_pre_hook(blend, with_kwargs=True))
            handles.append(layer.register_forward_hook(follow))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for (layer, name), (buffer, _) in held.items():  # of a forward that raised
            layer._buffers[name] = buffer


def input_of(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    """The input that a layer got, by position or by keyword."""
    return args[0] if args else next(iter(kwargs.values()))
