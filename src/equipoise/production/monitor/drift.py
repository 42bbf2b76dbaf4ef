"""Distances of a stream from its start, and of an adapter's running statistics from the source model's."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.adapter import Adapter

_TINY = 1e-12


def total_variation(shares: NDArray[Any], others: NDArray[Any]) -> float:
    """½ Σ_c |p_c − q_c|: the share of answers that would have to change, from 0 to 1.

    Two samples of one distribution are not at 0: with n answers in each over C equally frequent classes,
    about √((C − 1) / (π n)).
    """
    return float(np.abs(shares - others).sum() / 2)


def statistics_shift(adapter: Adapter) -> float | None:
    """The distance of the running statistics from those of the source model, in its standard deviations.

    The mean over the layers of √(mean_c ((μ_c − μ⁰_c)² + (σ_c − σ⁰_c)²) / (σ⁰_c)²): the 2-Wasserstein
    distance of normal distributions with the moments μ, σ of the channels c, relative to σ⁰. None where no
    statistics follow the stream.
    """
    student = adapter._respond.student
    layers = [name.removesuffix("running_var") for name in student.statistics if name.endswith("running_var")]
    if not layers:
        return None
    names = [f"{layer}{kind}" for kind in ("running_mean", "running_var") for layer in layers]
    with adapter._lock, torch.no_grad():
        source = student.source_values(dict.fromkeys(names))
        distances = [
            _distance(
                *(student.statistics[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
                *(source[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
            )
            for layer in layers
        ]
        return float(torch.stack(distances).mean())


def _distance(mean: Tensor, var: Tensor, source_mean: Tensor, source_var: Tensor) -> Tensor:
    source_mean, source_var = source_mean.to(mean), source_var.to(var)
    apart = (mean - source_mean).square() + (var.sqrt() - source_var.sqrt()).square()
    return (apart / source_var.clamp(min=_TINY)).mean().sqrt()
