"""The step an adapter takes down its loss."""

from collections.abc import Collection

import torch
from torch import Tensor, nn


def descend(loss: Tensor, parameters: Collection[nn.Parameter], rate: float) -> str:
    """Plain gradient descent, θ ← θ − rate · ∂loss/∂θ; returns why no step was taken, or an empty string.

    Nothing is written unless the loss and every gradient are finite.
    """
    if not bool(loss.isfinite()):
        return "non-finite loss"
    gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    steps = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    if not steps:
        return "the loss depends on no parameter that adapts"
    if not bool(torch.nn.utils.get_total_norm([g for _, g in steps]).isfinite()):
        return "non-finite gradient"
    with torch.no_grad():
        for parameter, gradient in steps:
            parameter.sub_(gradient, alpha=rate)
    return ""
