"""Averages and distances of weights, as pure functions of tensors by name."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.functional import at_least_single


def moving_average(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], decay: float | Tensor
) -> dict[str, Tensor]:
    """The average after new weights: decay · old + (1 − decay) · new, at least in single precision.

    Args:
        old: the average so far, by name.
        new: the weights that enter it; entries that the average has not are left out.
        decay: the share of the old average, as a number or a 0-d tensor.
    """
    averaged = {}
    for name, value in old.items():
        wide = at_least_single(value)
        share = decay.to(wide) if isinstance(decay, Tensor) else decay
        averaged[name] = torch.lerp(new[name].detach().to(wide), wide, share)
    return averaged


def cosine_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """1 − cos of two sets of weights of the same names, each as one vector, in at least single precision."""
    vectors = [torch.cat([at_least_single(each[n]).flatten() for n in one]) for each in (one, other)]
    return 1 - cosine_similarity(*vectors, dim=0)
