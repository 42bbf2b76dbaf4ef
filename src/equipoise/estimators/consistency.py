"""Estimates from further answers to the same samples: under dropout, and under another style."""

import math

import torch
from torch import Tensor

from equipoise.estimators.inputs import further_answers, result, stream
from equipoise.metrics.keywords import by_name
from equipoise.options import number

NEWEST_SHARE = 0.4
"""The weight of a batch in the average over batches of `aetta`."""


@by_name
def aetta(*, logits: Tensor, dropout_logits: Tensor, previous: Tensor | float | None = None) -> Tensor:
    """The agreement with answers under dropout, less where answers collapse onto few classes.

    With K answers under dropout for each of N samples, of `equipoise.estimators.dropout_logits`:

        d = mean over samples and draws of 1[ŷ ≠ ŷ under dropout],
        p̄ = mean over samples and draws of the probabilities under dropout,  H = -Σ_c p̄_c ln p̄_c,
        e = d · (H / ln C)^-3, held in [0, 1 - 1/C],
        estimate = 1 - (0.6 · e_before + 0.4 · e),

    where e_before is 1 - `previous`, the estimate at the batch before, or d at the first batch. Lee et al.,
    "AETTA: Label-Free Accuracy Estimation for Test-Time Adaptation", CVPR 2024.

    Deviations: H is exact, where the authors' code adds 1e-6 in the logarithm; e is 0 where d is. Rows of
    NaN, which metrics leave out, are left out of both.

    >>> logits = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> first = aetta(logits=logits, dropout_logits=torch.stack([logits, logits.flip(1)]))  # d = 1/2
    >>> first, aetta(logits=logits, dropout_logits=logits[None], previous=first)  # d = 0
    (tensor(0.5000), tensor(0.7000))
    """
    scores = stream(logits)
    draws = further_answers("dropout_logits", dropout_logits, scores)
    if not len(scores.values):
        return result(torch.nan, scores)
    disagreement = 1 - float(_agreement(scores.values, draws))
    error = 0.0
    if disagreement > 0:
        mean = draws.softmax(2).mean((0, 1))
        spread = float(torch.special.entr(mean).sum()) / math.log(len(mean))
        worst = 1 - 1 / len(mean)
        error = min(disagreement / spread**3, worst) if spread > 0 else worst
    before = disagreement if previous is None else 1 - number("previous", previous, low=0, high=1)
    return result(1 - ((1 - NEWEST_SHARE) * before + NEWEST_SHARE * error), scores)


@by_name
def sicl(*, logits: Tensor, style_logits: Tensor) -> Tensor:
    """The agreement with answers to the same samples in another style: mean of 1[ŷ = ŷ in another style].

    The K answers in other styles are those of `equipoise.estimators.style_logits`; the share of a sample's K
    answers that agree is its likelihood to be right, and the estimate is the mean over samples. After Nam et
    al., "Towards Reliable Test-Time Adaptation: Style Invariance as a Correctness Likelihood", WACV 2026
    (arXiv 2512.07390).

    Deviations: this is a reading of the paper's abstract and of summaries; neither its formulas nor code
    of the authors were at hand. The paper relaxes the likelihood by the content of a sample, to keep it from
    collapsing, which is left out. Numbers of it are not those of the paper.

    >>> logits = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> sicl(logits=logits, style_logits=torch.stack([logits, logits[[0, 0]]]))  # 3 of 4 agree
    tensor(0.7500)
    """
    scores = stream(logits)
    return result(_agreement(scores.values, further_answers("style_logits", style_logits, scores)), scores)


def _agreement(logits: Tensor, draws: Tensor) -> Tensor:
    """The share of (K, N, C) answers whose class is that of the (N, C) answers."""
    agree = draws.argmax(2) == logits.argmax(1).to(draws.device)
    return agree.to(draws.dtype).mean()
