"""A betting e-process: a sequential test that may be looked at after every batch, for ever."""

import math
from dataclasses import dataclass, replace

BOLDEST = 0.9
"""The largest bet in units of 1/ε: a loss of 0 then costs nine tenths of the wealth."""


def grapa(mean: float, variance: float, epsilon: float) -> float:
    """The bet λ for losses of a mean and variance: clip((μ − ε) / (σ² + (μ − ε)²), 0, .9 / ε)."""
    above = mean - epsilon
    return min(above / (max(variance, 0.0) + above * above), BOLDEST / epsilon) if above > 0 else 0.0


@dataclass(frozen=True)
class EProcess:
    """The wealth of a gambler who bets that losses are larger than tolerated (Timans et al., UAI 2025).

    For losses ℓ in [0, 1] and a tolerated mean ε,

        M_t = Π_{s ≤ t} (1 + λ_s (ℓ_s − ε)),   λ_s = clip((μ − ε) / (σ² + (μ − ε)²), 0, .9 / ε),

    with μ and σ² the mean and variance of the losses before s, which an exponential window forgets
    (approximate GRAPA, Waudby-Smith and Ramdas, JRSS B 2024). The alarm is M ≥ 1/δ.

    H0: E[ℓ_t | the past] ≤ ε at every t. Then M is a supermartingale that starts at 1, and by Ville's
    inequality P(ever an alarm) ≤ δ. The losses need not be independent or of one distribution, and the model
    that makes them may change. A batch is one loss, the mean over its samples: they may depend on each other
    in any way, as the frames of a video do.

    Attributes:
        epsilon: ε.
        delta: δ.
        half_life: losses after which a loss counts half in μ and σ².
        log_wealth: ln M.
        lowest: its lowest value so far.
        calm: the batch at which it was last at its lowest: the evidence has come since.
        weight: of the losses in the window.
        total: their weighted sum.
        squares: that of their squares.
    """

    epsilon: float
    delta: float
    half_life: float
    log_wealth: float = 0.0
    lowest: float = 0.0
    calm: int = 0
    weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """μ, 0 before the first loss."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def bet(self) -> float:
        """λ of the next update."""
        if not self.weight:
            return 0.0
        return grapa(self.mean, self.squares / self.weight - self.mean * self.mean, self.epsilon)

    @property
    def alarm(self) -> bool:
        """Whether M ≥ 1/δ."""
        return self.log_wealth >= -math.log(self.delta)

    @property
    def evidence(self) -> float:
        """The share of the evidence that an alarm takes, ln M / ln(1/δ): 1 is an alarm."""
        return self.log_wealth / -math.log(self.delta)

    def after(self, loss: float, batch: int, bet: float | None = None) -> "EProcess":
        """The process after a loss.

        Args:
            loss: in [0, 1].
            batch: the number of the batch.
            bet: λ, which must not depend on this loss; None: that of the losses before.
        """
        bet = self.bet if bet is None else bet
        wealth = self.log_wealth + math.log1p(bet * (loss - self.epsilon))
        kept = 2.0 ** (-1 / self.half_life)
        return replace(
            self,
            log_wealth=wealth,
            lowest=min(self.lowest, wealth),
            calm=batch if wealth <= self.lowest else self.calm,
            weight=kept * self.weight + 1,
            total=kept * self.total + loss,
            squares=kept * self.squares + loss * loss,
        )
