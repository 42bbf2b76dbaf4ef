"""Tensors by name: parts of a mapping, and copies by few kernels, some of them by a flag on the device."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

_AT_ONCE = 2**23  # elements


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names start with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `part`."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each tensor once whatever number of names it has."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors, by few kernels."""
    made = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    copy_into(made, tensors)
    return made


def copy_into(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Give tensors the values of the same names, by few kernels."""
    with torch.no_grad():
        for names in _groups(tensors, values):
            torch._foreach_copy_([tensors[n] for n in names], [values[n].detach() for n in names])


def copy_unless(flag: Tensor, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Give tensors the values of the same names unless a flag on the device is true, by few kernels."""
    with torch.no_grad():
        for names in _groups(tensors, values):
            olds = [_flat(tensors[name].detach(), like=tensors[name]) for name in names]
            news = [_flat(values[name].detach(), like=tensors[name]) for name in names]
            chosen = torch.where(flag.to(olds[0].device), torch.cat(olds), torch.cat(news))
            parts = chosen.split([old.numel() for old in olds])
            torch._foreach_copy_(olds, parts)
            for name, part in zip(names, parts, strict=True):
                if not _is_dense(tensors[name]):
                    tensors[name].copy_(part.view(tensors[name].shape))


def _flat(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements of a tensor in the memory order of another of its shape: a view where it is dense."""
    if not _is_dense(like):
        return tensor.reshape(-1).clone()
    if tensor.stride() != like.stride():
        tensor = torch.empty_like(like).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def _is_dense(tensor: Tensor) -> bool:
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return channels_last or tensor.is_contiguous()


def _groups(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Iterator[list[str]]:
    """Names of tensors of one type and device, so many at once that copies of them take little memory."""
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[str], int]] = {}
    for name in names:
        kind = (tensors[name].dtype, tensors[name].device)
        group, elements = groups.get(kind, ([], 0))
        if group and elements + tensors[name].numel() > _AT_ONCE:
            yield group
            group, elements = [], 0
        groups[kind] = ([*group, name], elements + tensors[name].numel())
    yield from (group for group, _ in groups.values())
