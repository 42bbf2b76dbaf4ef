"""The temperature at which two models agree on how confident the answers are."""

import math

import torch
from torch import Tensor

from equipoise.functional import at_least_single

_WIDEST = 16.0  # how far from its start the search for a temperature goes, as a ratio
_FINEST = 2**14  # into how many parts it divides that range, which leaves an interval of .03 %
_AT_ONCE = 2**16  # numbers up to which the search tries many temperatures in one go, for fewer kernels


def agreement_temperature(
    logits: Tensor, source_logits: Tensor, t: Tensor, tau: Tensor, known: Tensor | None = None
) -> Tensor:
    """The one temperature at which the answers are as confident as two models on average find them.

    T₀ = median_i √(t_i · tau_i), between the paper's tau and the authors' notebook's t. At T₀, with k_i the
    class of answer i, two models, the one that answers and the source model, give it the probability

        a = avg_i ½ · (softmax(z_i / T₀)_k + softmax(source_i / T₀)_k),

    and T is where avg_i max softmax(z_i / T) = a. Where both agree, T is near T₀; the more they differ, the
    higher it is. No label is needed, and no class of an answer changes. Only samples that are `known` (None:
    all) count.
    """
    if known is None:
        known = torch.ones_like(tau, dtype=torch.bool)
    share = known / known.sum()
    start = median((t * tau).sqrt(), known)
    z, other = at_least_single(logits), at_least_single(source_logits)
    classes = z.argmax(1, keepdim=True)
    ours, theirs = _behind(z, classes, known), _behind(other, classes, known)
    aim = (_doubt(ours, share, start[None]) + _doubt(theirs, share, start[None])) / 2
    points = 25 if 25 * z.numel() <= _AT_ONCE else 1
    between = torch.linspace(0, 1, points + 2, device=z.device, dtype=start.dtype)
    low, width = start / _WIDEST, torch.full_like(start, _WIDEST**2)
    for _ in range(math.ceil(math.log(_FINEST) / math.log(points + 1))):
        tried = low * width**between  # doubt grows with temperature: T is after the last that is too sure
        after = (_doubt(ours, share, tried[1:-1]) < aim).sum()
        low, width = tried.gather(0, after[None])[0], width ** between[1]
    return torch.where(aim > 0, low * width.sqrt(), start)[0]  # without doubt, every temperature would do


def _behind(logits: Tensor, classes: Tensor, known: Tensor) -> Tensor:
    """The distance of the logits of the other classes from that of the class of each answer."""
    behind = (logits - logits.gather(1, classes)).scatter(1, classes, -torch.inf)
    return torch.where(known.unsqueeze(1), behind, -torch.inf)


def _doubt(behind: Tensor, share: Tensor, temperatures: Tensor) -> Tensor:
    """avg_i (1 − softmax(z_i / T)_k) for each T: a probability near 1 would have no digits left."""
    odds = (behind / temperatures.reshape(-1, 1, 1)).exp().sum(2)
    return (share * (1 / (1 + 1 / odds))).sum(1)  # not a product of matrices: autocast would narrow it


def median(values: Tensor, known: Tensor) -> Tensor:
    """The median of the known values, the lower middle for an even count; infinity where none is known."""
    ordered = torch.where(known, values, torch.inf).sort().values
    return ordered.gather(0, ((known.sum() - 1).clamp(min=0) // 2)[None])[0]
