"""Facts and copies of a module: its device, a hash of its weights, a frozen copy."""

import hashlib
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError


def check_module(model: Any) -> None:
    """Raise ModelError for anything but a module with weights."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise ModelError("expected a model with weights, got lazy layers: run a batch through it first")


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter or buffer; the CPU if it has none."""
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and values of a model's floating-point weights and buffers.

    Values are hashed as float32, so it does not change with the device, the memory format or a cast to
    double; a cast to half precision changes the weights and so the fingerprint.
    """
    check_module(model)
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # torch.compile wraps the module and prefixes every name.
            plain = name.replace("_orig_mod.", "")
            digest.update(f"{plain} {tuple(tensor.shape)};".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


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
