"""An adapted classifier without its adapter."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.batch import logits_of


class TemperedModel(nn.Module):
    """A frozen copy of a model in eval mode whose logits are divided by a constant temperature."""

    temperature: Tensor

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        with torch.inference_mode(False):
            self.model = deepcopy(model).eval().requires_grad_(False)
            like = next(self.model.parameters(), torch.zeros(()))
            wide = torch.float64 if like.dtype == torch.float64 else torch.float32
            self.register_buffer("temperature", torch.tensor(temperature, dtype=wide, device=like.device))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits."""
        return logits_of(self.model(*args, **kwargs)) / self.temperature
