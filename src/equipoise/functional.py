"""Pure tensor functions of the paper: entropy, soft cross-entropy and the certainty regulariser."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from equipoise.errors import OptionError

__all__ = ["certainty_regularizer", "entropy", "soft_cross_entropy"]


def at_least_single(values: Tensor) -> Tensor:
    """Half-precision values as float32, others as they are: three digits do not make a temperature."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def all_at_least_single(values: Iterable[Tensor]) -> list[Tensor]:
    """Each of several tensors at least in single precision."""
    return [at_least_single(each) for each in values]


def nats(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) in nats, one number a sample.

    H = −Σ_c p_c ln p_c with p = softmax(z); 0 ln 0 counts as 0, so logits of −inf are fine. The gradient is
    finite where probabilities round to 0, too.
    """
    log_p = at_least_single(logits).log_softmax(-1)
    return (log_p.exp() * -log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) in bits, one number a sample.

    H = −Σ_c p_c log₂ p_c with p = softmax(z); 0 log 0 counts as 0, so logits of −inf are fine.

    >>> entropy(torch.tensor([[0.0, 0.0], [0.0, -float("inf")]]))
    tensor([1., 0.])
    """
    return nats(logits) / math.log(2)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of softmax(logits) against target probabilities in nats, one number a sample.

    CE = −Σ_c q_c log p_c with p = softmax(z) and q the targets.
    """
    return -(targets * at_least_single(logits).log_softmax(-1)).sum(-1)


def certainty_regularizer(
    logits: Tensor, h0: float, kappa: float, t_min: float, t_max: float
) -> tuple[Tensor, Tensor]:
    """The paper's certainty regulariser (Algorithm 1, CCR) of each sample: its pair (t, tau).

    t   = t_min + sigmoid((H − h0) / √h_max) · (t_max − t_min),   h_max = log₂ C
    tau = t · kappa / ‖z‖₂

    H is the entropy of softmax(z) in bits, h0 the mean entropy and kappa the median logit norm on the
    source domain. tau is not bounded: it grows without limit as ‖z‖ falls, is inf for a zero logit vector,
    and is below 1 for norms above kappa · t. Since H ≥ 0, t never gets near t_min: with h0 near 0 it starts
    at the middle of the range.

    Amin and Kim, "The Over-Certainty Phenomenon in Modern Test-Time Adaptation Algorithms", TMLR 2025.

    >>> z = torch.tensor([[8.0, 7.29]])
    >>> t, tau = certainty_regularizer(z, h0=entropy(z).item(), kappa=z.norm().item(), t_min=1.0, t_max=2.0)
    >>> t, tau
    (tensor([1.5000]), tensor([1.5000]))
    """
    if logits.ndim < 1 or logits.shape[-1] < 2 or not logits.is_floating_point():
        raise OptionError(
            f"certainty_regularizer: expected floating-point logits of at least 2 classes in the last "
            f"dimension, got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    _check(h0, kappa, t_min, t_max)
    z = at_least_single(logits)
    h_max = math.log2(z.shape[-1])
    contrast = torch.sigmoid((entropy(z) - h0) / math.sqrt(h_max))
    t = t_min + contrast * (t_max - t_min)
    return t, t * (kappa / torch.linalg.vector_norm(z, dim=-1))


def check_range(t_min: float, t_max: float) -> None:
    """Raise OptionError unless 0 < t_min ≤ t_max < ∞."""
    if not (0 < t_min <= t_max < math.inf):
        raise OptionError(f"expected 0 < t_min <= t_max, got t_min={t_min} and t_max={t_max}")


def _check(h0: float, kappa: float, t_min: float, t_max: float) -> None:
    check_range(t_min, t_max)
    if not (0 < kappa < math.inf):
        raise OptionError(f"expected kappa > 0 (the median logit norm on the source), got {kappa}")
    if not (0 <= h0 < math.inf):
        raise OptionError(f"expected h0 >= 0 (the mean entropy on the source, in bits), got {h0}")
