"""Losses of answers: entropies, pseudo-labels, and distances from other answers."""

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from equipoise.core.gradient import Loss
from equipoise.core.verdict import Check
from equipoise.functional import at_least_single, nats, soft_cross_entropy

Objective: TypeAlias = Literal["entropy", "come"]
"""Names of objectives: Shannon's entropy, or the entropy of an opinion that may be undecided."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def objective(name: Objective, logits: Tensor) -> Tensor:
    """The objective of (N, C) logits in nats, one number a sample."""
    return nats(logits) if name == "entropy" else opinion_entropy(logits)


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy over C classes and the outcome "undecided": COME (Zhang et al., ICLR 2025).

        b_c = exp(z̃_c) / (Σ_k exp(z̃_k) + C),   u = C / (Σ_k exp(z̃_k) + C),
        H = −Σ_c b_c ln b_c − u ln u,   z̃ = z · stop(‖z‖₂) / ‖z‖₂,

    stop(·) a constant to the gradient: z̃ equals z, and its gradient has no component along z, so that answers
    do not become sure by growing. u depends on the scale of the logits: with logits near 0 an answer is half
    undecided, with large ones H is the entropy of the classes.

    (b, u) is the softmax of (z̃, ln C), computed in log space and at least in single precision: logits of half
    precision overflow under exp.

    Deviations: the authors' code has 1000 in place of C.

    >>> opinion_entropy(torch.zeros(1, 4))  # b = 1/8 each, u = 1/2
    tensor([1.3863])
    """
    z = at_least_single(logits)
    finite = torch.where(z.isfinite(), z, 0.0)  # −inf has no direction
    direction = normalize(finite.detach(), dim=-1)
    along = (direction * finite).sum(-1, keepdim=True)
    z = z.clamp(min=torch.finfo(z.dtype).min)
    frozen = z + direction * (along.detach() - along)
    undecided = torch.full_like(z[..., :1], math.log(z.shape[-1]))
    return nats(torch.cat([frozen, undecided], dim=-1))


def kept_rows(kept: Tensor, logits: Tensor) -> Tensor:
    """Logits with zeros in the rows that are not kept: a NaN there would reach the gradient, as 0 · NaN."""
    return torch.where(kept.unsqueeze(1), logits, 0.0)


def mean_over(kept: Tensor, values: Tensor) -> Tensor:
    """The mean of values over the samples kept; 0 where none is.

    The others may be infinite or NaN. For a gradient their logits must not be: `kept_rows`.
    """
    return torch.where(kept, values, 0.0).sum() / kept.sum().clamp(min=1)


def pseudo_labelled(logits: Tensor, confidence: float) -> Loss:
    """The mean cross-entropy of the samples whose largest probability is above `confidence`, 0 without any.

    L = mean over {i: max_c p_ic > confidence} of −ln p_ik, k = argmax_c p_ic, p = softmax(z).
    """
    sure = at_least_single(logits.detach()).softmax(1).amax(1) > confidence
    log_p = at_least_single(kept_rows(sure, logits)).log_softmax(1).amax(1)
    words = f"none of {len(logits)} samples has a probability above {confidence:g}"
    some = Check(sure.any(), words, on_failure="skip")
    return Loss(mean_over(sure, -log_p), sure.sum(), checks=(some,))


def against(logits: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy of each answer against a teacher's, both as logits."""
    return soft_cross_entropy(logits, at_least_single(teacher).softmax(1))


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """½ CE(p, q) + ½ CE(q, p) of the probabilities p, q of two logits, one number a sample."""
    there = soft_cross_entropy(one, at_least_single(other).softmax(1))
    back = soft_cross_entropy(other, at_least_single(one).softmax(1))
    return (there + back) / 2
