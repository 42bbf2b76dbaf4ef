"""The divergence of two batches in a normalisation layer, in plain Python."""

import math

from torch import Tensor


def plain_divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, eps: float) -> float:
    """The mean over channels of ln(1 + both Kullback-Leibler divergences of two normals)."""
    total = 0.0
    for m, v, n, w in zip(*(t.double().tolist() for t in (mean, var, other_mean, other_var)), strict=True):
        v, w = v + eps, w + eps
        there = 0.5 * (math.log(w / v) + (v + (m - n) ** 2) / w - 1)
        back = 0.5 * (math.log(v / w) + (w + (m - n) ** 2) / v - 1)
        total += math.log(1 + there + back)
    return total / len(mean)
