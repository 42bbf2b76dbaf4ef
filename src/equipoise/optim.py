"""The step an adapter takes down its loss."""

from collections.abc import Collection

import torch
from torch import Tensor, nn


def descend(loss: Tensor, parameters: Collection[nn.Parameter], rate: float) -> str:
    """Plain gradient descent, θ ← θ − rate · ∂loss/∂θ; returns why no step was taken, or an empty string.

    Nothing is written unless the loss, every gradient and the step itself are finite.
    """
    if not bool(loss.isfinite()):
        return "non-finite loss"
    chosen = list(parameters)
    gradients = torch.autograd.grad(loss, chosen, allow_unused=True) if loss.requires_grad else ()
    steps = [(p, _dense(g)) for p, g in zip(chosen, gradients, strict=False) if g is not None]
    if not steps:
        return "the loss depends on no parameter that adapts"
    longest = torch.nn.utils.get_total_norm([g for _, g in steps]) * max(rate, 1.0)
    if not bool(longest.isfinite()):
        return "non-finite gradient or step"
    with torch.no_grad():
        # One call for all parameters: an interrupt comes before it or after it, never between two of them.
        torch._foreach_sub_([p for p, _ in steps], [g for _, g in steps], alpha=rate)
    return ""


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
