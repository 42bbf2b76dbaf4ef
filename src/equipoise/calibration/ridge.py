"""Ridge regression of a few features, with estimates of its own errors."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

PENALTY = 0.03
"""The weight of the squared coefficients, for each row; .01 to .3 were tried, with little difference."""

COVERED = 0.9
"""The share of left-out residuals that `margin` covers."""


@dataclass(frozen=True)
class Ridge:
    """A linear function of standardised features, kept within the range it was fitted to.

        f(x) = clamp(bias + w · (x − mean) / spread, low, high)

    Attributes:
        mean: means of the features.
        spread: their standard deviations, at least the floors given.
        weights: w.
        bias: the mean of the targets.
        low: the smallest target.
        high: the largest.
        inverse: (ZᵀZ / n + penalty · I)⁻¹ of the standardised features Z, for `leverage`.
        reach: the largest leverage of a row.
        margin: the 90 % quantile of |residual|, each from a fit without the row's group.
        doubt: the root mean square of those residuals.
    """

    mean: Tensor
    spread: Tensor
    weights: Tensor
    bias: Tensor
    low: Tensor
    high: Tensor
    inverse: Tensor
    reach: Tensor
    margin: Tensor
    doubt: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) of features in the last dimension."""
        z = (x - self.mean) / self.spread
        return (self.bias + (z * self.weights).sum(-1)).clamp(self.low, self.high)

    def leverage(self, x: Tensor) -> Tensor:
        """zᵀ · inverse · z: how far features are from the middle of those that were fitted."""
        z = (x - self.mean) / self.spread
        return ((z @ self.inverse) * z).sum(-1)

    def tensors(self) -> dict[str, Tensor]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device) -> "Ridge":
        """The same on a device, in single precision."""
        return Ridge(**{name: tensor.to(device, torch.float32) for name, tensor in self.tensors().items()})


def fit_ridge(x: Tensor, y: Tensor, weight: Tensor, groups: Sequence[str], floors: Tensor) -> Ridge:
    """Fit targets y (n) to features x (n, f), and again without each group to learn how far off it is.

        w = argmin Σ_i a_i · (y_i − ȳ − w · z_i)² + penalty · n · ‖w‖²,   z = (x − mean) / spread,

    with a_i the `weight` of a row (they are scaled to a mean of 1), and mean, ȳ and spread weighted, too.
    `floors` are the least spreads: a feature that hardly varied in rehearsal shall not decide.
    """
    solved = _solve(x, y, weight, floors)
    residuals = left_out(x, y, weight, groups, floors) - y
    ordered, places = residuals.abs().sort()
    share = weight[places].cumsum(0) / weight.sum()
    at = int(torch.searchsorted(share, torch.tensor(COVERED, dtype=share.dtype)).clamp(max=len(y) - 1))
    doubt = ((weight * residuals.square()).sum() / weight.sum()).sqrt()
    return Ridge(**{**solved.tensors(), "margin": ordered[at], "doubt": doubt})


def left_out(x: Tensor, y: Tensor, weight: Tensor, groups: Sequence[str], floors: Tensor) -> Tensor:
    """For each row, the prediction of a fit without its group."""
    found = torch.empty_like(y)
    for group in dict.fromkeys(groups):
        own = torch.tensor([name == group for name in groups])
        if own.all():
            return torch.full_like(y, float(y.mean()))
        found[own] = _solve(x[~own], y[~own], weight[~own], floors)(x[own])
    return found


def _solve(x: Tensor, y: Tensor, weight: Tensor, floors: Tensor) -> Ridge:
    a = weight / weight.mean()
    mean, bias = (a.unsqueeze(1) * x).mean(0), (a * y).mean()
    spread = (a.unsqueeze(1) * (x - mean).square()).mean(0).sqrt().maximum(floors)
    z = (x - mean) / spread
    moments = z.T @ (a.unsqueeze(1) * z) / len(y) + PENALTY * torch.eye(z.shape[1], dtype=z.dtype)
    inverse = torch.linalg.inv(moments)
    weights = inverse @ (z.T @ (a * (y - bias))) / len(y)
    reach = ((z @ inverse) * z).sum(1).max()
    none = torch.zeros((), dtype=x.dtype)
    return Ridge(mean, spread, weights, bias, y.min(), y.max(), inverse, reach, none, none)
