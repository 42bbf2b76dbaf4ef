"""Copies of a model that can learn or answer without touching the original."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError


def frozen_copy(model: nn.Module) -> nn.Module:
    """A deep copy in eval mode whose parameters take no gradients.

    Tensors that a module keeps from an earlier forward (a cached feature, say) belong to a graph and cannot
    be copied as they are; the copy gets their values.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "expected an eager torch.nn.Module, got a ScriptModule: adapt the module it was made from"
        )
    with torch.inference_mode(False):
        cached: dict[int, Tensor] = {
            id(value): value.detach().clone()
            for module in model.modules()
            for value in vars(module).values()
            if isinstance(value, Tensor) and not value.is_leaf
        }
        return deepcopy(model, dict(cached)).eval().requires_grad_(False)
