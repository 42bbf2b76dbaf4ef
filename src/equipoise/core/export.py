"""A plain module with a temperature: an adapted classifier without its adapter."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.network.outputs import OutputsFunction, logits_of

_TEMPERATURE = "equipoise_temperature"


def with_temperature(
    model: nn.Module, temperature: float, outputs: OutputsFunction | None = None
) -> nn.Module:
    """The model itself, changed to answer with its logits divided by a constant temperature.

    It keeps its class and the signature of its forward; `outputs` picks the logits out of its output. The
    temperature is one of its buffers, part of its state, and a hook divides by it.
    """
    like = next(model.parameters(), torch.zeros(()))
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    with torch.inference_mode(False):
        model.register_buffer(_TEMPERATURE, torch.tensor(temperature, dtype=wide, device=like.device))
    # A bare function, where it can be: torch.export traces it.
    model.register_forward_hook(_temper if outputs is None else partial(_temper, outputs=outputs))
    return model


def _temper(module: nn.Module, _inputs: Any, output: Any, outputs: OutputsFunction | None = None) -> Tensor:
    temperature: Tensor = getattr(module, _TEMPERATURE)  # get_buffer is too much for torch.export's tracing
    return logits_of(output, outputs) / temperature
