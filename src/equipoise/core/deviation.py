"""The distance of weights, statistics and memory from those of the source model."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.network.student import Student

_TINY = 1e-12


class Deviation(NamedTuple):
    """The distance of an adapter from the source model.

    Attributes:
        finite: whether all weights, statistics and memory are finite.
        weights: ‖θ − θ₀‖ / ‖θ₀‖ of the weights that learn, θ₀ those of the source model; 0 if not finite.
        statistics: the same of the running statistics.
    """

    finite: bool
    weights: float
    statistics: float


def deviation(student: Student, memory: Iterable[Tensor]) -> Deviation:
    """Measure the distance of a network and its method's memory; waits for the device."""
    source = student.source_values(student.statistics)
    with torch.no_grad():
        weights, statistics = float(student.weight_distance()), _distance(student.statistics, source)
        remembered = _added([tensor.float().sum() for tensor in memory if tensor.is_floating_point()])
    finite = all(math.isfinite(value) for value in (weights, statistics, remembered))
    return Deviation(True, weights, statistics) if finite else Deviation(False, 0.0, 0.0)


def _distance(values: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> float:
    """‖values − source‖ / ‖source‖ over all tensors; 0 where there are none."""
    pairs = [
        (value.detach().float(), source[name].to(value.device).float())
        for name, value in values.items()
        if value.is_floating_point()
    ]
    moved = _added([(value - start).square().sum() for value, start in pairs])
    length = _added([start.square().sum() for _, start in pairs])
    return math.sqrt(moved / length) if length else math.sqrt(moved)


def _added(numbers: list[Tensor]) -> float:
    """The sum of numbers on a device, copied to the host at once."""
    return float(torch.stack(numbers).cpu().double().sum()) if numbers else 0.0


def statistics_shift(student: Student) -> float | None:
    """The distance of the running statistics from those of the source model, in its standard deviations.

    The mean over the layers of √(mean_c ((μ_c − μ⁰_c)² + (σ_c − σ⁰_c)²) / (σ⁰_c)²): the 2-Wasserstein
    distance of normal distributions with the moments μ, σ of the channels c, relative to σ⁰. None where no
    statistics follow the stream.
    """
    layers = [name.removesuffix("running_var") for name in student.statistics if name.endswith("running_var")]
    if not layers:
        return None
    names = [f"{layer}{kind}" for kind in ("running_mean", "running_var") for layer in layers]
    with torch.no_grad():
        source = student.source_values(dict.fromkeys(names))
        distances = [
            _apart(
                *(student.statistics[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
                *(source[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
            )
            for layer in layers
        ]
        return float(torch.stack(distances).mean())


def _apart(mean: Tensor, var: Tensor, source_mean: Tensor, source_var: Tensor) -> Tensor:
    source_mean, source_var = source_mean.to(mean), source_var.to(var)
    apart = (mean - source_mean).square() + (var.sqrt() - source_var.sqrt()).square()
    return (apart / source_var.clamp(min=_TINY)).mean().sqrt()
