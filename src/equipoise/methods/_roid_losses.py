"""Losses and weights of ROID, which CMF shares, as pure functions of logits."""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from equipoise.functional import at_least_single, nats, soft_cross_entropy

_TEMPERATURE = 1 / 3  # of the weights, the authors'
_LARGEST, _EPSILON = 0.99, 1e-5  # of the soft likelihood ratio, the authors'


def sample_weights(logits: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (N,) of samples that are certain and unlike the average, as constants; and which are kept.

    w = exp(d · c / τ), τ = ⅓, with d = 1 − cos(average, p) and c = −H(p), each stretched over the batch to 0
    to 1. Samples are kept, and have a weight other than 0, if d is not below its mean.

    Args:
        logits: of the batch, (N, C).
        average: the moving average of the probabilities, (C,).
    """
    logits = logits.detach()
    probabilities = at_least_single(logits).softmax(1)
    diversity = _stretched(1 - cosine_similarity(average.unsqueeze(0), probabilities))
    certainty = _stretched(-nats(logits))
    kept = diversity >= diversity.mean()
    return torch.where(kept, (diversity * certainty / _TEMPERATURE).exp(), 0.0), kept


def _stretched(values: Tensor) -> Tensor:
    """Values stretched to 0 to 1; zeros where all are the same, as of a single sample."""
    low, high = values.amin(), values.amax()
    return torch.where(high > low, (values - low) / torch.where(high > low, high - low, 1.0), 0.0)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """−Σ_c p_c ln(p_c / (1 − p_c) + 1e-5), p at most .99, one number a sample."""
    p = at_least_single(logits).softmax(1).clamp(max=_LARGEST)
    return -(p * (p / (1 - p) + _EPSILON).log()).sum(1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """½ CE(p, q) + ½ CE(q, p) of the probabilities p, q of two logits, one number a sample."""
    there = soft_cross_entropy(one, at_least_single(other).softmax(1))
    back = soft_cross_entropy(other, at_least_single(one).softmax(1))
    return (there + back) / 2


def with_prior(logits: Tensor) -> Tensor:
    """Logits plus the logarithm of the smoothed mean of the batch's probabilities.

    π = mean_i p_i, s = max(1/N, 1/C) / max_c π_c, π̃ = (π + s) / (1 + s C): the softmax of z + ln π̃ is the
    posterior under the prior π̃, where that of the model was uniform. Rows that are not finite have no part in
    π.
    """
    rows, classes = logits.shape
    good = logits.isfinite().all(1, keepdim=True)
    probabilities = at_least_single(torch.where(good, logits, 0.0)).softmax(1)
    prior = torch.where(good | ~good.any(), probabilities, 0.0).sum(0) / torch.where(
        good.any(), good.sum(), rows
    )
    smoothing = max(1 / rows, 1 / classes) / prior.amax()
    smoothed = (prior + smoothing) / (1 + smoothing * classes)
    return logits + smoothed.log().to(logits)
