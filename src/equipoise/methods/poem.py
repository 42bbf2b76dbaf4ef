"""POEM: match the entropies of the stream to those of the source, and only as far as they differ."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import SourceError
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import kept_rows, mean_over
from equipoise.options import option
from equipoise.registry import register

_RATE, _LARGEST = 1 / (8 * math.sqrt(3)), 1.8  # the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Poem(WindowedMethod):
    """Protected online entropy matching (Bar, Shaer and Romano, NeurIPS 2024).

    With F the distribution of the source's entropies and H those of the stream, u = F(H) is uniform where
    nothing has shifted. Bets 1 + ε v on v = u − ½, sample after sample and by all of them, show a shift:

        g = v / (1 + ε v),   ε ← ε + γ g / √(Σ g²),   γ = 1 / (8 √3),   |ε| ≤ 1.8,
        u' = ½ ε u² + (1 − ½ ε) u,   H' = F⁻¹(u') + (1 − ½ |ε|) (H − F⁻¹(u)),   with ε of before it,
        L = mean over {H < E₀} of ½ w² (H − H')²,   w = exp(E₀ − H),   E₀ = margin · ln C,

    H' and w taken as constants. Without a shift ε stays near 0, H' near H, and nothing is learned. One
    forward and one backward a batch. Where no sample has H < E₀ there is no step, but ε follows.

    Args:
        margin: E₀ as a multiple of ln C.
        learning_rate: by default 2.5e-4 for "sgd" (the authors, for ResNet-50) and 1e-3 for "adam".
        steps: steps a batch; every one of them bets on its samples again.

    Deviations: the second term of H' is 0 in the range of the source's entropies, where F⁻¹(u) = H. Beyond
    it, F⁻¹(u') alone is the end of the range, to which H would be moved without a bet, too: here H is moved
    towards the range by |ε| / 2 of its distance, whatever the sign of ε. Where source samples share an
    entropy, u is the middle of their levels, else u would not be ½ on average. F is linear between 257
    quantiles of the source's entropies; the authors keep every entropy. Their code takes no step until 100
    samples have come, here the first batch is learned from; it does not bet on the first sample of a stream,
    here all are bet on; and of several `steps` on a batch it bets in the first alone. It leaves out layers by
    parts of their names; here every normalisation layer adapts. With batch norm, entropies by the batch's
    statistics differ from the source's, which are by running statistics: that is a shift, too.
    """

    name = "poem"
    needs_source = True

    margin: float = option(0.4, low=0)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, no bet, and no gradients of bets yet."""
        zero = at_least_single(next(iter(student.learned.values())).detach()).new_zeros(())
        return {**super().initial(student, source), "epsilon": zero, "squares": zero.clone()}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The quantiles of the source's entropies."""
        return {} if source is None else {"quantiles": source.entropies.to(student.device)}

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The squared distance of entropies from where the bets move them."""
        fixed, limit = nats(logits.detach()), self.margin * math.log(logits.shape[1])
        quantiles = context.constants["quantiles"].to(fixed.dtype)
        levels, memory = level_of(fixed, quantiles), context.memory
        bets, epsilon, squares = betting(levels - 0.5, memory["epsilon"], memory["squares"])
        moved = levels + bets / 2 * (levels**2 - levels)
        inside = quantile_at(levels, quantiles)
        shift = quantile_at(moved, quantiles) - inside - bets.abs() / 2 * (fixed - inside)
        kept = fixed < limit
        weighted = (limit - fixed).exp() * (nats(kept_rows(kept, logits)) - fixed - shift)
        some = Check(kept.any(), f"none of {len(logits)} samples is reliable", on_failure="skip")
        news = {"epsilon": epsilon, "squares": squares}
        return Loss(mean_over(kept, weighted**2 / 2), kept.sum(), news, (some,))

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        """Refuse source statistics without entropies."""
        if source is None or not source.entropies.numel():
            raise SourceError(
                "poem needs source statistics with the quantiles of entropies, and these have none, as they "
                f"were made by hand or by an older version: source = {self.measuring}"
            )


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
