"""Facts and copies of a module: its device, a hash of its weights, a frozen copy."""

import hashlib
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.network.forward import original


class LearningModule(nn.Module):
    """A module that learns as it answers: the base of adapters, which no adapter can adapt."""


def checked_module(model: Any) -> nn.Module:
    """The module behind torch.compile; ModelError for anything but a module with weights, or an adapter."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    plain = original(model)
    for name, module in plain.named_modules():
        if isinstance(module, LearningModule):
            place = f"a model with an adapter inside, {name!r}, which would learn" if name else "an adapter"
            raise ModelError(
                f"expected a plain model, got {place}: adapt the model that it was made from, or the plain "
                "module that adapter.detach() returns"
            )
    if any(isinstance(p, nn.UninitializedParameter) for p in plain.parameters()):
        raise ModelError("expected a model with weights, got lazy layers: run a batch through it first")
    return plain


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
    model = checked_module(model)
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # torch.compile wraps modules inside the model and prefixes their names.
            plain = name.replace("_orig_mod.", "")
            digest.update(f"{plain} {tuple(tensor.shape)};".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def frozen_copy(model: nn.Module) -> nn.Module:
    """A deep copy in eval mode whose parameters take no gradients.

    Tensors that a module keeps from an earlier forward (a cached feature, say) belong to a graph and cannot
    be copied as they are; the copy gets their values. The copy has nothing of torch.compile.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "expected an eager torch.nn.Module, got a ScriptModule: adapt the module it was made from"
        )
    with torch.inference_mode(False):
        made: dict[int, Any] = {
            id(value): value.detach().clone()
            for module in model.modules()
            for value in vars(module).values()
            if isinstance(value, Tensor) and not value.is_leaf
        }
        for module in reversed(list(model.modules())):  # those inside others first
            if original(module) is not module:
                made[id(module)] = deepcopy(original(module), made)
        return deepcopy(original(model), made).eval().requires_grad_(False)
