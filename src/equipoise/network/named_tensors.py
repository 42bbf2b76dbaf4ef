"""The names of what methods keep between batches: prefixes that say what kind of thing it is."""

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLES = "samples."
"""Observations as they came, a row each."""

SUPPORTS = "supports."
"""Features of observations, or sums of them."""

OPTIMIZER = "optimizer."
"""An optimiser's state."""


def part(kept: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names start with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in kept.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `part`."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors, those of one type and device by one kernel."""
    made = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault((tensor.dtype, tensor.device), []).append(name)
    with torch.no_grad():
        for names in kinds.values():
            torch._foreach_copy_([made[n] for n in names], [tensors[n].detach() for n in names])
    return made


def put_back(tensors: Mapping[str, Tensor], before: Mapping[str, Tensor], *, unless: Tensor) -> None:
    """Give tensors the values they had before unless a flag on the device is true, by few kernels."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault(tensor.dtype, []).append(name)
    with torch.no_grad():
        for names in kinds.values():
            old, new = (torch.cat([values[n].reshape(-1) for n in names]) for values in (before, tensors))
            parts = torch.where(unless, new, old).split([tensors[n].numel() for n in names])
            settled = [part.view(tensors[n].shape) for n, part in zip(names, parts, strict=True)]
            torch._foreach_copy_([tensors[n] for n in names], settled)


class ArrivalError(RuntimeError):
    """Something is kept that was not there before, or no more: not what a CUDA graph can have."""


def chosen(flag: Tensor, new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The new entries where a flag on the device is true, else the old ones; both have the same names."""
    if new.keys() != old.keys():
        raise ArrivalError(
            f"expected what is kept under the same names, got {sorted(new.keys() ^ old.keys())}"
        )
    return {name: t if t is old[name] else torch.where(flag, t, old[name]) for name, t in new.items()}
