"""Ridge regression of a few features."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

PENALTY = 0.03
"""The weight of the squared coefficients, for each row; .01 to .3 were tried, with little difference."""


@dataclass(frozen=True)
class Ridge:
    """A linear function of standardised features: f(x) = bias + w · (x − mean) / spread.

    Attributes:
        mean: means of the features.
        spread: their standard deviations, at least the floors given.
        weights: w.
        bias: the mean of the targets.
    """

    mean: Tensor
    spread: Tensor
    weights: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) of features in the last dimension."""
        return self.bias + ((x - self.mean) / self.spread * self.weights).sum(-1)

    def tensors(self) -> dict[str, Tensor]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device) -> "Ridge":
        """The same on a device, in single precision."""
        return Ridge(**{name: tensor.to(device, torch.float32) for name, tensor in self.tensors().items()})


def fit_ridge(x: Tensor, y: Tensor, weight: Tensor, floors: Tensor) -> Ridge:
    """Fit targets y (n) to features x (n, f).

        w = argmin Σ_i a_i · (y_i − ȳ − w · z_i)² + penalty · n · ‖w‖²,   z = (x − mean) / spread,

    with a_i the `weight` of a row (they are scaled to a mean of 1), and mean, ȳ and spread weighted, too.
    `floors` are the least spreads: a feature that hardly varied in rehearsal shall not decide.
    """
    a = weight / weight.mean()
    mean, bias = (a.unsqueeze(1) * x).mean(0), (a * y).mean()
    spread = (a.unsqueeze(1) * (x - mean).square()).mean(0).sqrt().maximum(floors)
    z = (x - mean) / spread
    moments = z.T @ (a.unsqueeze(1) * z) / len(y) + PENALTY * torch.eye(z.shape[1], dtype=z.dtype)
    weights = torch.linalg.solve(moments, z.T @ (a * (y - bias)) / len(y))
    return Ridge(mean, spread, weights, bias)
