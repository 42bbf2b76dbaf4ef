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
_EDGE = 1e-3  # of the mean confidence, so that its logit is finite


def width(classes: int) -> int:
    """The number of elements of a window."""
    return 7 + len(GRID) + classes


def sums(logits: Tensor, good: Tensor, new: Tensor | None = None) -> Tensor:
    """The windows of a batch of (models, N, C) logits, (models, width): `good` samples (N) count.

    `new` is the novelty of the inputs (N), the same for all models; None counts as 0.
    """
    counted = good.unsqueeze(-1)
    z = torch.where(counted, at_least_single(logits), 0.0)
    norm = torch.linalg.vector_norm(z - z.mean(-1, keepdim=True), dim=-1, keepdim=True)
    largest, classes = z.max(-1, keepdim=True)
    behind = z - largest
    exponentials = behind.exp()
    confidence = exponentials.sum(-1, keepdim=True).reciprocal()
    p = exponentials * confidence
    columns = [  # contiguous, which `cat` has a kernel of its own for
        torch.ones_like(norm),
        confidence,
        confidence.square(),
        torch.special.entr(p).sum(-1, keepdim=True),
        norm.clamp(min=_TINY).log(),
        (classes != classes.roll(1, 0)).to(norm),  # of two models; one does not differ from itself
        torch.zeros_like(norm) if new is None else new.to(norm).unsqueeze(-1).expand_as(norm).contiguous(),
    ]
    return (torch.cat([*columns, confidences(behind), p], -1) * counted).sum(-2).float()


def confidences(behind: Tensor) -> Tensor:
    """The max of softmax(z / T) for each T of the grid, (…, N, grid), from logits less their largest."""
    # Made on the device, as a CUDA graph cannot copy GRID there; by operations that Apple's GPUs have.
    first, last = -math.log2(GRID[0]), -math.log2(GRID[-1])
    inverse = torch.linspace(first, last, len(GRID), dtype=behind.dtype, device=behind.device).exp2()
    if behind.numel() * len(GRID) <= AT_ONCE:
        return (behind.unsqueeze(-2) * inverse.unsqueeze(-1)).exp().sum(-1).reciprocal()
    return torch.stack([(behind * each).exp().sum(-1).reciprocal() for each in inverse], -1)


def joined(sums: Tensor, fresh: Tensor, samples: Tensor) -> Tensor:
    """Sums (…, 2, width) of the slow and the fast window after a batch of some samples with the sums `fresh`.

    Both forget by 2^(−n / half-life) for n samples and add the batch (…, width).
    """
    rates = torch.linspace(-1 / HALF_LIFE, -1 / FAST_HALF_LIFE, 2, dtype=fresh.dtype, device=fresh.device)
    return torch.addcmul(fresh.unsqueeze(-2), sums, torch.exp2(samples * rates).view(2, 1))


def has_changed(windows: Tensor) -> Tensor:
    """Whether a stream has changed by its windows (models, 2, width), the slow ones and the fast ones.

    It has where the confidence of the first model in the fast window is further from that in the slow one
    than 4 standard errors.
    """
    count, confidence, square = windows[0, :, : SQUARE + 1].unbind(-1)
    some = count.clamp(min=_TINY)
    mean, second = confidence / some, square / some
    variance = (second - mean.square())[0].clamp(min=1e-4)
    return (mean[1] - mean[0]).square() * count[1] > CHANGED**2 * variance


def begun_again(sums: Tensor, changed: Tensor) -> Tensor:
    """Sums (…, 2, width) of a stream: where it has changed, the slow ones go on from the fast ones."""
    return torch.where(changed, sums[..., 1:, :], sums)


def after(windows: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Windows (models, 2, width) after a batch with the sums `fresh` (models, width), and if it is a change.

    They forget and add the batch (`joined`); where the stream has changed, the slow windows go on from the
    fast ones.
    """
    found = joined(windows, fresh, fresh[0, COUNT])
    changed = has_changed(found)
    return begun_again(found, changed), changed


def means(window: Tensor) -> Tensor:
    """The sums of windows (…, width) before the temperatures, each over the number of samples, (…, 7)."""
    return window[..., : _CURVE.start] / window[..., :1].clamp(min=_TINY)


def features(window: Tensor) -> Tensor:
    """The features that accuracy is estimated from, (…, 7), of windows (…, width).

    With c the mean confidence, v its variance, H the mean entropy, q the mean probabilities, d the share of
    samples that two models put into different classes, and n the novelty of the inputs:

        logit c,  ln(H / (1 − c)),  ln(v / (c · (1 − c))),  H(q) / ln C,  mean ln ‖z − z̄‖,  logit d,
        ± ln(1 + |mean n| / .3).

    The two ratios distinguish doubt that is spread over all samples from doubt about some of them. Confidence
    has no part in the last three, nor have answers in the last.
    """
    _, confidence, square, entropy, norm, apart, new = means(window).split(1, -1)
    c = confidence.clamp(_EDGE, 1 - _EDGE)
    doubt = 1 - c
    v = (square - confidence.square()).clamp(min=_TINY)
    shares = window[..., _SHARES]
    q = shares / shares.sum(-1, keepdim=True).clamp(min=_TINY)
    balance = torch.special.entr(q).sum(-1, keepdim=True) / math.log(shares.shape[-1])
    ratio, shape = (entropy.clamp(min=_TINY) / doubt).log(), (v / (c * doubt)).log()
    novel = (new.abs() / LITTLE_NEW).log1p().copysign(new)
    # Contiguous, which `cat` has a kernel of its own for.
    return torch.cat([c.logit(), ratio, shape, balance, norm.contiguous(), apart.logit(0.01), novel], -1)


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
    curve = window[..., _CURVE] / window[..., :1].clamp(min=_TINY)
    above = (curve > confidence.unsqueeze(-1)).sum(-1, keepdim=True).clamp(1, len(GRID) - 1)
    high, low = curve.gather(-1, torch.cat([above - 1, above], -1)).unbind(-1)
    part = ((high - confidence) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    return torch.exp2((above.squeeze(-1) + part - (1 + _AS_IT_IS)) / 4)
