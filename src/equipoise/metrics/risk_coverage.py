"""The risk-coverage curve: how many errors are left among the answers when the least sure ones are withheld.

Sums over groups of equally confident samples are enough for it, and those of two streams add up.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.metrics.bins import widest_dtype

LOG_ODDS_CELLS = 8192
_CELLS_PER_UNIT = 128
_LOWEST_LOG_ODDS = -24


class RiskCoveragePoint(NamedTuple):
    """A point of a risk-coverage curve.

    Attributes:
        confidence: The least confidence that is answered, inf where nothing is.
        share: Share of samples that are answered.
        risk: Share of errors among the answered, NaN where nothing is answered.

    >>> RiskCoveragePoint(confidence=0.9, share=0.5, risk=0.02).share
    0.5
    """

    confidence: float
    share: float
    risk: float


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The curve of risk over coverage: one entry for each threshold, from the highest confidence down.

    At threshold t the samples of confidence >= t are answered, equally confident ones together:
    share(t) = n(t) / N and risk(t) = errors(t) / n(t). El-Yaniv and Wiener, "On the Foundations of Noise-free
    Selective Classification", JMLR 2010.

    Attributes:
        confidence: The thresholds, falling, shape (K,).
        share: Share of the samples that are answered at each, rising to 1. The paper calls it coverage, which
            in equipoise is a property of prediction sets.
        risk: Share of errors among the answered.

    >>> import torch
    >>> from equipoise.metrics import risk_coverage
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    >>> curve = risk_coverage(probs=probs, target=torch.tensor([0, 0, 0, 1]))
    >>> curve.risk
    tensor([0.0000, 0.0000, 0.0000, 0.2500])
    >>> curve.at_risk(0.05).share
    0.75
    """

    confidence: Tensor
    share: Tensor
    risk: Tensor

    @property
    def area(self) -> Tensor:
        """The area under the curve: Σ_k (share_k - share_{k-1}) risk_k with share_0 = 0; NaN without samples.

        That is the mean over samples of the risk at their own confidence: 0 is perfect, and confidence that
        tells nothing gives the error rate. Geifman et al., "Bias-Reduced Uncertainty Estimation for Deep
        Neural Classifiers", ICLR 2019 (AURC), which orders equally confident samples as they come.
        """
        if not len(self.risk):
            return self.risk.new_full((), torch.nan)
        return (self.share.diff(prepend=self.share.new_zeros(1)) * self.risk).sum()

    def at_risk(self, risk: float) -> RiskCoveragePoint:
        """The point of the largest share whose risk is at most this; of share 0 where no threshold has it."""
        reached = (self.risk <= risk).nonzero()
        if not len(reached):
            return RiskCoveragePoint(math.inf, 0.0, math.nan)
        last = int(reached[-1])
        return RiskCoveragePoint(*(float(of[last]) for of in (self.confidence, self.share, self.risk)))


def risk_coverage_of(
    confidence: Tensor, size: Tensor, correct: Tensor, dtype: torch.dtype | None = None
) -> RiskCoverage:
    """The curve of groups in ascending confidence, from their sizes and numbers of right answers.

    Groups without samples are left out. The tensors have the dtype, or else that of the sums.
    """
    occupied = size > 0
    confidence, size, correct = (of[occupied].flip(0) for of in (confidence, size, correct))
    answered = size.cumsum(0)
    risk = (size - correct).cumsum(0) / answered
    share = answered / size.sum()
    dtype = dtype or size.dtype
    return RiskCoverage(confidence=confidence.to(dtype), share=share.to(dtype), risk=risk.to(dtype))


def log_odds_cell(confidence: Tensor) -> Tensor:
    """The cell that ln(p / (1 - p)) lies in, each 1/128 wide: from -24 to 40, beyond which float64 has but 1.

    Of cells of equal width in p itself, one would hold most answers of a sure model.
    """
    # Rows of probabilities may sum to a little more than 1.
    log_odds = torch.logit(confidence.to(widest_dtype(confidence.device)).clamp(max=1))
    cell = ((log_odds - _LOWEST_LOG_ODDS) * _CELLS_PER_UNIT).floor()
    return cell.clamp(0, LOG_ODDS_CELLS - 1).long()


def cell_confidence(like: Tensor) -> Tensor:
    """The least confidence of each cell, in dtype and on the device of a tensor."""
    cells = torch.arange(LOG_ODDS_CELLS, dtype=like.dtype, device=like.device)
    return (cells / _CELLS_PER_UNIT + _LOWEST_LOG_ODDS).sigmoid()
