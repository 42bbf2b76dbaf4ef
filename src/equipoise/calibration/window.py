"""Statistics of answers without labels, over a window of a stream that forgets, in constant memory.

A window is a vector of sums over samples, each with the weight that it has left: the number of samples,
their confidence max p, its square, their entropy in nats, the logarithm of the norm of their centred logits,
whether two models differ about their class, the novelty of their inputs (`novelty.Novelty`), their
confidence at each temperature of `GRID`, and their probabilities, p = softmax(z). All of it is linear, so
windows can be added, and forget by a factor.
"""

import math

import torch
from torch import Tensor

from equipoise.functional import at_least_single

HALF_LIFE = 300.0
"""The samples after which a sample counts half; 150 to 600 were tried, with little difference."""

PRIOR_SAMPLES = 50
"""The samples that "no shift" counts for before the first batch; 25 to 100 were tried."""

FAST_HALF_LIFE = 50.0
"""The same of a second window, beside which a change of the stream shows."""

CHANGED = 4.0
"""The distance of the confidence of both windows, in standard errors, that is a change of the stream."""

GRID = tuple(2 ** (step / 4) for step in range(-8, 21))
"""Temperatures from ¼ to 32 at which confidence is known; between them it is interpolated."""

COUNT, CONFIDENCE, SQUARE, ENTROPY, NORM, APART, NOVEL = range(7)
_CURVE = slice(7, 7 + len(GRID))
_SHARES = slice(7 + len(GRID), None)
_AS_IT_IS = GRID.index(1.0)
AT_ONCE = 2**22  # numbers up to which all temperatures are tried in one go, for fewer kernels

FEATURES = (
    "confidence",
    "entropy ratio",
    "spread ratio",
    "class balance",
    "logit norm",
    "disagreement",
    "novelty",
)

LITTLE_NEW = 0.3
"""The novelty up to which a feature is linear; .3 to 1 were tried, and a linear one."""

_TINY = 1e-6


def width(classes: int) -> int:
    """The number of elements of a window."""
    return 7 + len(GRID) + classes


def sums(logits: Tensor, good: Tensor, new: Tensor | None = None) -> Tensor:
    """The windows of a batch of (models, N, C) logits, (models, width): `good` samples (N) count.

    `new` is the novelty of the inputs (N), the same for all models; None counts as 0.
    """
    z = at_least_single(logits)
    z = torch.where(good.unsqueeze(-1), z, 0.0)
    norm = (z - z.mean(-1, keepdim=True)).square().sum(-1).clamp(min=_TINY**2).log() / 2
    z = z - z.amax(-1, keepdim=True)
    exponentials = z.exp()
    p = exponentials / exponentials.sum(-1, keepdim=True)
    confidence = p.amax(-1)
    entropy = -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1)
    ones = torch.ones_like(confidence)
    classes = z.argmax(-1)
    apart = (classes != classes.roll(1, 0)).to(ones.dtype)  # of two models; one does not differ from itself
    novel = torch.zeros_like(ones) if new is None else new.to(ones).expand_as(ones)
    rows = torch.stack([ones, confidence, confidence.square(), entropy, norm, apart, novel], -1)
    counted = torch.cat([rows, confidences(z), p], -1)
    return (counted * good.unsqueeze(-1)).sum(-2).float()


def confidences(behind: Tensor) -> Tensor:
    """The max of softmax(z / T) for each T of the grid, (…, N, grid), from logits less their largest."""
    steps = torch.arange(len(GRID), dtype=behind.dtype, device=behind.device)  # a CUDA graph cannot have GRID
    grid = torch.exp2((steps - _AS_IT_IS) / 4)
    if behind.numel() * len(GRID) <= AT_ONCE:
        return 1 / (behind.unsqueeze(-2) / grid.unsqueeze(-1)).exp().sum(-1)
    return torch.stack([1 / (behind / t).exp().sum(-1) for t in grid], -1)


def after(windows: Tensor, fresh: Tensor) -> Tensor:
    """Windows (models, 2, width) after a batch with the sums `fresh` (models, width) has come.

    Both forget by 2^(−n / half-life) for n samples and add the batch. Where the confidence of the first model
    in the fast window is further from that in the slow one than 4 standard errors, the stream has changed,
    and the slow windows go on from the fast ones.
    """
    rows = fresh[0, COUNT]
    kept = torch.stack([torch.exp2(-rows / HALF_LIFE), torch.exp2(-rows / FAST_HALF_LIFE)])
    joined = windows * kept.view(1, 2, 1) + fresh.unsqueeze(1)
    slow, fast = joined[0, 0], joined[0, 1]
    mean = slow[CONFIDENCE] / slow[COUNT].clamp(min=_TINY)
    variance = (slow[SQUARE] / slow[COUNT].clamp(min=_TINY) - mean.square()).clamp(min=1e-4)
    apart = fast[CONFIDENCE] / fast[COUNT].clamp(min=_TINY) - mean
    changed = apart.square() * fast[COUNT] > CHANGED**2 * variance
    restarted = joined[:, 1:].expand(-1, 2, -1)
    return torch.where(changed, restarted, joined)


def features(window: Tensor) -> Tensor:
    """The features that accuracy is estimated from, (…, 7), of windows (…, width).

    With c the mean confidence, v its variance, H the mean entropy, q the mean probabilities, d the share of
    samples that two models put into different classes, and n the novelty of the inputs:

        logit c,  ln(H / (1 − c)),  ln(v / (c · (1 − c))),  H(q) / ln C,  mean ln ‖z − z̄‖,  logit d,
        ± ln(1 + |mean n| / .3).

    The two ratios distinguish doubt that is spread over all samples from doubt about some of them. Confidence
    has no part in the last three, nor have answers in the last.
    """
    count = window[..., COUNT].clamp(min=_TINY)
    c = (window[..., CONFIDENCE] / count).clamp(1e-3, 1 - 1e-3)
    v = (window[..., SQUARE] / count - (window[..., CONFIDENCE] / count).square()).clamp(min=_TINY)
    shares = window[..., _SHARES]
    q = shares / shares.sum(-1, keepdim=True).clamp(min=_TINY)
    balance = -(q * q.clamp(min=1e-12).log()).sum(-1) / math.log(shares.shape[-1])
    ratio = (window[..., ENTROPY] / count).clamp(min=_TINY) / (1 - c)
    norm, apart = window[..., NORM] / count, disagreement(window).clamp(0.01, 0.99)
    shape, new = (v / (c * (1 - c))).log(), novelty(window)
    novel = new.sign() * (new.abs() / LITTLE_NEW).log1p()
    return torch.stack([c.logit(), ratio.log(), shape, balance, norm, apart.logit(), novel], -1)


def disagreement(window: Tensor) -> Tensor:
    """The share of samples that two models put into different classes, of windows (…, width)."""
    return window[..., APART] / window[..., COUNT].clamp(min=_TINY)


def novelty(window: Tensor) -> Tensor:
    """The mean novelty of the inputs, of windows (…, width)."""
    return window[..., NOVEL] / window[..., COUNT].clamp(min=_TINY)


def confidence_at(confidences: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The confidences (N) at temperature 1 and at another, from those at all of the grid (N, grid)."""
    place = (_AS_IT_IS + 4 * temperature.log2()).clamp(0, len(GRID) - 1)
    low = place.floor().long().clamp(max=len(GRID) - 2)
    return confidences[:, _AS_IT_IS], torch.lerp(
        confidences[:, low], confidences[:, low + 1], float(place - low)
    )


def temperature_for(window: Tensor, confidence: Tensor) -> Tensor:
    """The temperature from ¼ to 32 at which the samples of a window have this mean confidence.

    Linear between the temperatures of the grid, over their logarithms; the ends where none has it.
    """
    curve = window[..., _CURVE] / window[..., COUNT, None].clamp(min=_TINY)
    above = (curve > confidence.unsqueeze(-1)).sum(-1, keepdim=True).clamp(1, len(GRID) - 1)
    high, low = curve.gather(-1, above - 1).squeeze(-1), curve.gather(-1, above).squeeze(-1)
    part = ((high - confidence) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    return torch.exp2((above.squeeze(-1) - 1 + part - _AS_IT_IS) / 4)
