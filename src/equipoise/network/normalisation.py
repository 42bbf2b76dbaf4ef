"""Normalisation layers on batch, blended or frozen statistics; layers are found by type, never by name.

Where several processes (ranks) adapt as one, a batch is that of all ranks. A rank without a row of its own
runs the model on a stand-in, to take part in the exchanges of the others; its count is 0, and its results
count for nothing. They must be finite all the same where gradients are taken: other layers multiply them by
gradients of 0.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from types import MethodType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from equipoise.distributed.ranks import Ranks
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


_BATCH_NORM = signature(batch_norm)


def pooled_moments(x: Tensor, ranks: Ranks, counted: bool = True) -> Moments:
    """The moments of (N, C, ...) inputs over all ranks, at least in single precision; no gradient.

    With n_r values a channel on rank r, their means m_r and variances v_r (Chan, Golub and LeVeque, 1979):

        n = Σ n_r,  mean = Σ n_r · m_r / n,  var = Σ n_r · (v_r + (m_r − mean)²) / n.

    Not `counted`: the inputs are a stand-in's.
    """
    with torch.no_grad():
        rows, each, mean, var = moments(x)
        if ranks.alone:
            return Moments(rows, each, mean, var)
        mine = torch.cat((mean.new_tensor([rows, each]), mean, var))
        if not counted:
            mine = torch.zeros_like(mine)  # a stand-in's numbers may be anything, NaN too
        sizes, means, variances = (
            torch.stack(ranks.rows_of_all(mine[None], [1] * ranks.size, "moments"))
            .squeeze(1)
            .split([2, len(mean), len(mean)], 1)
        )
        rows, each = (int(total) for total in sizes.sum(0).tolist())
        shares = sizes[:, 1:] / max(each, 1)
        mean = (shares * means).sum(0)
        return Moments(rows, each, mean, (shares * (variances + (means - mean) ** 2)).sum(0))


def pooled_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    ranks: Ranks,
    counted: bool = True,
) -> Tensor:
    """The `batch_norm` of torch in train mode over the rows of all ranks.

    y = γ · (x − mean) / √(var + eps) + β, and running ← (1 − momentum) · running + momentum · (mean, var ·
    n / (n − 1)). On the way back the ranks add up Σ dy and Σ dy · x̂ for dx; the gradients of γ and β are
    those of this rank's rows, to be averaged with all others (`Ranks.gather`).
    """
    moments = pooled_moments(x, ranks, counted)
    if moments.each < 2:
        raise ValueError(
            f"expected more than 1 value per channel over all ranks, got inputs of size {tuple(x.shape)}"
        )
    with torch.no_grad():
        unbiased = moments.var * (moments.each / (moments.each - 1))
        for running, news in ((running_mean, moments.mean), (running_var, unbiased)):
            if running is not None:
                running.copy_((1 - momentum) * running + momentum * news)
        scale = (moments.var + eps).rsqrt()
    return _normalised(x, weight, bias, moments.mean, scale, moments.each, ranks, counted)


class _Normalised(torch.autograd.Function):
    """x̂ = (x − mean) · scale, times γ, plus β; mean and scale are functions of the x of all ranks.

    dx = γ · scale · (dy − (Σ dy + x̂ · Σ dy · x̂) / n) with the sums over all ranks, dγ = Σ dy · x̂ and
    dβ = Σ dy over this one's rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        each: int,
        ranks: Ranks,
        counted: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.each, ctx.ranks, ctx.counted = each, ranks, counted
        y = _standardised(x, mean, scale)
        if weight is not None:
            y = y * _by_channel(weight, x)
        if bias is not None:
            y = y + _by_channel(bias, x)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        dy, rest = at_least_single(gradients[0]), _but_channels(x)
        standard = _standardised(x, mean, scale)
        if not ctx.counted:
            dy, standard = torch.zeros_like(dy), torch.zeros_like(standard)
        sums = torch.stack((dy.sum(rest), (dy * standard).sum(rest)))
        dx = None
        if ctx.needs_input_grad[0]:
            total, along = ctx.ranks.sums(sums, "gradients of a layer") / ctx.each
            dx = dy - _by_channel(total, x) - standard * _by_channel(along, x)
            factor = scale if weight is None else scale * weight
            dx = (dx * _by_channel(factor, x)).to(x.dtype)
            if not ctx.counted:
                dx = torch.zeros_like(dx)
        d_bias, d_weight = sums
        return (
            dx,
            d_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            d_bias.to(bias.dtype) if ctx.needs_input_grad[2] else None,
            *[None] * 5,
        )


_normalised: Callable[..., Tensor] = _Normalised.apply


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.ndim - 2))


def _standardised(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (at_least_single(x) - _by_channel(mean, x)) * _by_channel(scale, x)


@contextmanager
def pooled_batch(model: nn.Module, ranks: Ranks, counts: Sequence[int]) -> Iterator[None]:
    """Let whatever normalises by the statistics of the batch do so by those of all ranks' rows.

    `counts` are their numbers of rows. A batch of one row on all ranks together is normalised by the running
    statistics, which stay.
    """
    if ranks.alone or sum(counts) < 2:
        yield
        return
    # Their own forward exchanges without a time limit, and is refused on a CPU.
    talkers = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    try:
        for layer in talkers:
            vars(layer)["forward"] = MethodType(_BatchNorm.forward, layer)
        with _Pooling(ranks, counts[ranks.rank] > 0):
            yield
    finally:
        for layer in talkers:
            vars(layer).pop("forward", None)
    _average_instances(model, ranks, counts)


class _Pooling(TorchFunctionMode):
    """Takes the place of torch's `batch_norm` wherever it is called in train mode.

    Layers that are made from torch's have a `forward` of their own (timm's apply an activation), and what a
    layer does before and after, such as counting batches, stays its own.
    """

    def __init__(self, ranks: Ranks, counted: bool) -> None:
        super().__init__()
        self._ranks, self._counted = ranks, counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is batch_norm:
            call = _BATCH_NORM.bind(*args, **kwargs)
            call.apply_defaults()
            given = dict(call.arguments)
            if given.pop("training"):
                return pooled_batch_norm(
                    given.pop("input"), **given, ranks=self._ranks, counted=self._counted
                )
        return func(*args, **kwargs)


def _average_instances(model: nn.Module, ranks: Ranks, counts: Sequence[int]) -> None:
    """Bring the running statistics of instance norms together, each rank's by its share of the rows.

    They are averages over rows: (1 − momentum) · running + momentum · avg_i moment_i.
    """
    layers = [module for module in model.modules() if isinstance(module, _InstanceNorm)]
    moving = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]
    buffers = [buffer for buffer in moving if buffer is not None]
    if not buffers:
        return
    share = ranks.size * counts[ranks.rank] / sum(counts)
    with torch.no_grad():
        mine = [
            at_least_single(b) * share if share else at_least_single(torch.zeros_like(b)) for b in buffers
        ]
        for buffer, mean in zip(buffers, ranks.average(mine, "instances' statistics"), strict=True):
            buffer.copy_(mean)
