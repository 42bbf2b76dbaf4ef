"""Gaussian-process and ridge regression of rehearsed windows, with estimates of their own errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HostArray = NDArray[np.float64]

TREND, BEND, LENGTH = 1.0, 0.5, 1.0
"""Standard deviations of the linear and of the smooth part, and the distance over which the latter changes.

BEND of .3 to 1 and LENGTH of .7 to 2 were tried on recorded answers of 29 models: differences of .01 at most.
"""

OFFSET, SCATTER = 0.4, 0.1
"""Standard deviations of what a shift has in common (.2 to .5 were tried), and of a single window."""

ROOM = 0.3
"""Half of the least interval, as a logit: real streams mix samples as no made-up shift does."""

COVERED = 0.9
"""The share of left-out errors that `margin` covers."""

FAMILIAR = 0.95
"""The share of rehearsed windows that are no further from other shifts than `limit`."""


class Posteriors:
    """The means of several processes on a device, in single precision and in one pass.

    Each takes a part of a row of features (…, width); the answer is (…, processes).

    Args:
        processes: with the same number of fitted rows.
        parts: of the row, for each process.
        width: the number of features in the row.
        device: the device.
    """

    def __init__(
        self, processes: Sequence["Process"], parts: Sequence[slice], width: int, device: torch.device
    ) -> None:
        def wide(values: Tensor, part: slice) -> Tensor:
            """The same in a row of all features, with zeros for those of others."""
            row = values.new_zeros(*values.shape[:-1], width)
            row[..., part] = values
            return row

        own = list(zip(processes, parts, strict=True))
        numbers = {
            "scale": [wide(each.scale, part) for each, part in own],
            "shift": [wide(-each.mean * each.scale, part) for each, part in own],
            "rows": [wide(each.rows, part) for each, part in own],
            "weights": [
                torch.cat(
                    [wide(TREND**2 * each.rows.T @ each.weights, part), BEND**2 * each.weights],
                )
                for each, part in own
            ],
            "level": [each.bias + TREND**2 * each.weights.sum() for each in processes],
            "limit": [each.limit for each in processes],
            "low": [each.low for each in processes],
            "high": [each.high for each in processes],
        }
        self._numbers = {name: torch.stack(each).to(device, torch.float32) for name, each in numbers.items()}

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The estimate of each process at features in the last dimension, and its `Process.distance`."""
        own = self._numbers
        z = torch.addcmul(own["shift"], x.unsqueeze(-2), own["scale"])
        apart = (z.unsqueeze(-2) - own["rows"]).square().sum(-1)
        near = (apart / (-2 * LENGTH**2)).exp()
        found = (torch.cat([z, near], -1) * own["weights"]).sum(-1) + own["level"]
        return found.clamp(own["low"], own["high"]), apart.amin(-1).sqrt() / own["limit"]


class Found(NamedTuple):
    """What a process finds at features.

    Attributes:
        value: the estimate, within the range of the targets.
        distance: of the features from the nearest row that was fitted, in units of `Process.limit`.
        half_width: of the 90 % interval.
    """

    value: float
    distance: float
    half_width: float


class _Host(NamedTuple):
    """Numbers of a `Process` on the host; `lengths` are the squares of those of its rows."""

    mean: HostArray
    scale: HostArray
    rows: HostArray
    lengths: HostArray
    origin: HostArray
    inverse: HostArray
    weights: HostArray
    bias: float
    margin: float
    limit: float
    low: float
    high: float


@dataclass(frozen=True)
class Process:
    """A target as a function of features: linear far from the rehearsed rows, exact where nothing shifted.

    With z = (x − mean) · scale, the covariance of two rows is

        TREND² · (z · z' + 1) + BEND² · exp(−‖z − z'‖² / 2 LENGTH²)
        + OFFSET² · 1[same shift] + noise · 1[same row],

    where rows without a shift have no OFFSET: they are the data that the model was measured on, and no
    shift of their own is between them and the truth. So the estimate is right where nothing has shifted, and
    fades from there into the regression of all shifts. Rasmussen and Williams, Gaussian Processes for
    Machine Learning, 2006; scale has 1 / √f for f features in it, so that distances do not grow with f.

    Attributes:
        mean: means of the features.
        scale: 1 / (standard deviation · √f), the deviation at least the floors given.
        rows: the features that were fitted, as z; (n, f).
        targets: their targets.
        noise: variance of each target.
        shifts: the number of each row's shift; 0 for none.
        origin: z where nothing shifted.
        bias: the mean of the targets.
        margin: the 90 % quantile of |error| / standard deviation, each row estimated without its shift.
        doubt: the root mean square of those errors.
        limit: the distance from the nearest row of another shift that 95 % of the rows keep.
    """

    mean: Tensor
    scale: Tensor
    rows: Tensor
    targets: Tensor
    noise: Tensor
    shifts: Tensor
    origin: Tensor
    bias: Tensor
    margin: Tensor
    doubt: Tensor
    limit: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The estimate at features in the last dimension, within the range of the targets."""
        near = _covariance((x - self.mean) * self.scale, self.rows)
        found: Tensor = self.bias + near @ self.weights
        return found.clamp(self.low, self.high)

    def at(self, x: Tensor) -> "Found":
        """The estimate at one row of features (f) with its interval, on the host.

        Half of the 90 % interval is √((margin · standard deviation)² + ROOM²). The variance is that of the
        process with what a shift adds, OFFSET² · g² with g = 1 − exp(−‖z − origin‖² / 2): nothing where
        nothing shifted. Beyond `limit` the deviation grows with the distance.
        """
        own = self._host
        z = (x.double().numpy() - own.mean) * own.scale
        along, length = own.rows @ z, float(z @ z)
        apart = np.maximum(own.lengths + length - 2 * along, 0.0)
        near = TREND**2 * (along + 1) + BEND**2 * np.exp(apart / (-2 * LENGTH**2))
        known = TREND**2 * (length + 1) + BEND**2 - float(near @ own.inverse @ near)
        shifted = OFFSET * (1 - math.exp(-float(np.square(z - own.origin).sum()) / 2))
        deviation = math.sqrt(max(known, 0.0) + shifted**2 + SCATTER**2)
        distance = math.sqrt(float(apart.min())) / own.limit
        value = min(max(own.bias + float(near @ own.weights), own.low), own.high)
        return Found(value, distance, math.hypot(own.margin * deviation * max(distance, 1.0), ROOM))

    @cached_property
    def _host(self) -> "_Host":
        """The numbers as arrays, for which NumPy takes a third of the time where they are few."""

        def array(values: Tensor) -> HostArray:
            return values.double().numpy()

        return _Host(
            mean=array(self.mean),
            scale=array(self.scale),
            rows=array(self.rows),
            lengths=array(self.rows.square().sum(1)),
            origin=array(self.origin),
            inverse=array(self.inverse),
            weights=array(self.weights),
            bias=float(self.bias),
            margin=float(self.margin),
            limit=float(self.limit),
            low=float(self.low),
            high=float(self.high),
        )

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse of the covariance of the rows."""
        found: Tensor = torch.linalg.inv(_of_rows(self.rows, self.noise, self.shifts))
        return found

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each row in an estimate: inverse · (targets − bias)."""
        return self.inverse @ (self.targets - self.bias)

    @property
    def at_rest(self) -> Tensor:
        """The target where nothing shifted."""
        return self.targets[-1]

    @property
    def low(self) -> Tensor:
        """The smallest target."""
        return self.targets.min()

    @property
    def high(self) -> Tensor:
        """The largest target."""
        return self.targets.max()

    def tensors(self) -> dict[str, Tensor]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def left_out(self) -> Tensor:
        """For each row, the estimate without all rows of its shift."""
        errors, _ = _errors(self.inverse, self.weights, self.shifts)
        return (self.targets - errors).clamp(self.low, self.high)


def fit_process(
    x: Tensor,
    y: Tensor,
    *,
    variance: Tensor,
    weight: Tensor,
    shifts: Sequence[str],
    none: str,
    floors: Tensor,
    origin: Tensor,
    exact: Tensor,
) -> Process:
    """Fit targets y (n) to features x (n, f), and estimate each shift without itself.

    Args:
        x: the features; a floor of infinity leaves a feature out.
        y: the targets.
        variance: of each target, from the number of its samples; SCATTER² is added.
        weight: of each row in means, spreads and quantiles.
        shifts: the name of the shift of each row.
        none: the name of no shift.
        floors: the least spreads: a feature that hardly varied in rehearsal shall not decide.
        origin: the features of the window without shift, (f).
        exact: the target there, and its variance; (2).
    """
    share = weight / weight.sum()
    mean, bias = (share.unsqueeze(1) * x).sum(0), (share * y).sum()
    spread = (share.unsqueeze(1) * (x - mean).square()).sum(0).sqrt().maximum(floors)
    scale = 1 / (spread * math.sqrt(int(floors.isfinite().sum())))
    start = (origin - mean) * scale
    names = dict.fromkeys([none, *shifts])
    numbers = {name: number for number, name in enumerate(names)}
    numbered = torch.tensor([*(numbers[name] for name in shifts), 0])
    rows = torch.cat([(x - mean) * scale, start.unsqueeze(0)])
    targets = torch.cat([y, exact[:1]])
    noise = torch.cat([variance + SCATTER**2, exact[1:] + (SCATTER / 10) ** 2])
    inverse = torch.linalg.inv(_of_rows(rows, noise, numbered))
    errors, deviations = _errors(inverse, inverse @ (targets - bias), numbered)
    ordered, places = (errors / deviations)[:-1].abs().sort()
    at = int(torch.searchsorted(share[places].cumsum(0), torch.tensor(COVERED, dtype=share.dtype)))
    apart = (rows.unsqueeze(1) - rows).square().sum(2).sqrt()
    others = torch.where(numbered.unsqueeze(1) == numbered, torch.inf, apart).amin(1)
    return Process(
        mean=mean,
        scale=scale,
        rows=rows,
        targets=targets,
        noise=noise,
        shifts=numbered,
        origin=start,
        bias=bias,
        margin=ordered[min(at, len(ordered) - 1)],
        doubt=(share * errors[:-1].square()).sum().sqrt(),
        limit=others.quantile(FAMILIAR).clamp(1e-3, 1e3),
    )


def _covariance(z: Tensor, rows: Tensor) -> Tensor:
    """The covariances of the linear and the smooth part, (…, n)."""
    apart = (z.unsqueeze(-2) - rows).square().sum(-1)
    return TREND**2 * (z @ rows.T + 1) + BEND**2 * (-apart / (2 * LENGTH**2)).exp()


def _of_rows(rows: Tensor, noise: Tensor, shifts: Tensor) -> Tensor:
    """The covariance of fitted rows."""
    same = (shifts.unsqueeze(1) == shifts) & (shifts > 0)
    return _covariance(rows, rows) + OFFSET**2 * same + noise.diag()


def _errors(inverse: Tensor, weights: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Target less estimate without the rows of the same shift, and its standard deviation, for each row.

    With A the block of the inverse covariance of a shift's rows, the errors are A⁻¹ · weights, and their
    covariance is A⁻¹ (Rasmussen and Williams, 5.4.2, for blocks).
    """
    errors, variances = torch.empty_like(weights), torch.empty_like(weights)
    for shift in shifts.unique():
        own = (shifts == shift).nonzero().flatten()
        block = torch.linalg.inv(inverse[own][:, own])
        errors[own], variances[own] = block @ weights[own], block.diag()
    return errors, variances.clamp(min=1e-12).sqrt()


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
