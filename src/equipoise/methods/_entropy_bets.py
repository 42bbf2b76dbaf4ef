"""Bets against "the entropies are those of the source": levels of a distribution, and how much to bet."""

import math

import torch
from torch import Tensor

_RATE, _LARGEST = 1 / (8 * math.sqrt(3)), 1.8  # the authors' of POEM


def level_of(values: Tensor, quantiles: Tensor) -> Tensor:
    """F(x) of a distribution by its quantiles at equal levels from 0 to 1, linear in between.

    A value that several quantiles share has the middle of their levels: F(x) is ½ on average for any
    distribution. NaN for NaN.
    """
    intervals = len(quantiles) - 1
    first, after = (torch.searchsorted(quantiles, values, right=right) for right in (False, True))
    below = (first - 1).clamp(0, intervals - 1)
    start, end = quantiles[below], quantiles[below + 1]
    tiny = torch.finfo(quantiles.dtype).tiny
    inside = ((values - start) / (end - start).clamp(min=tiny)).clamp(0, 1)
    return torch.where(after > first, (first + after - 1) / 2, below + inside) / intervals


def quantile_at(levels: Tensor, quantiles: Tensor) -> Tensor:
    """F⁻¹(u), the inverse of `level_of`."""
    place = levels * (len(quantiles) - 1)
    below = place.nan_to_num(0.0).long().clamp(0, len(quantiles) - 2)
    return torch.lerp(quantiles[below], quantiles[below + 1], place - below)


def betting(gains: Tensor, epsilon: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bet on one gain after the other by scale-free gradient ascent on the logarithm of the wealth.

    With v a gain in [−½, ½], the wealth is multiplied by 1 + ε v, and

        g = v / (1 + ε v),   Σ ← Σ + g²,   ε ← ε + γ g / √Σ,   γ = 1 / (8 √3),   |ε| ≤ 1.8.

    Args:
        gains: v of each sample, in order; NaN counts for 0.
        epsilon: ε before the first.
        squares: Σ before the first.

    Returns:
        ε before each sample, and ε and Σ after the last.
    """
    bets = []
    tiny = torch.finfo(gains.dtype).tiny
    for gain in gains.nan_to_num(0.0).unbind():
        bets.append(epsilon)
        slope = gain / (1 + epsilon * gain)
        squares = squares + slope**2
        epsilon = (epsilon + _RATE * slope / squares.clamp(min=tiny).sqrt()).clamp(-_LARGEST, _LARGEST)
    return torch.stack(bets), epsilon, squares
