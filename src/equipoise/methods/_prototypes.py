"""A linear head helped by prototypes, more and more as they fill; what is kept has the size of the head."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.functional import at_least_single, entropy
from equipoise.methods._supports import SUMS, head_supports, join, prototypes

TALLY = "tally"
"""Sums over all samples: the spread over the classes of the head's logits, of the prototypes', and 1."""

PRIOR = 100
"""The samples for each class at which prototypes have half of the weight that they can have."""


class Head(NamedTuple):
    """What a linear layer multiplies and adds."""

    weight: Tensor
    bias: Tensor | None


def learn(kept: Mapping[str, Tensor], head: nn.Linear, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """What is kept after a batch: each feature joins the class that the head's logits name.

    Before the first batch the rows of the head's weight join, as in T3A (`supports.join`).
    """
    features, logits = at_least_single(features.detach()), at_least_single(logits.detach())
    with torch.autocast(features.device.type, enabled=False):
        return _learned(kept, head, features, logits)


def _learned(
    kept: Mapping[str, Tensor], head: nn.Linear, features: Tensor, logits: Tensor
) -> dict[str, Tensor]:
    good = features.isfinite().all(1) & logits.isfinite().all(1)
    features = torch.where(good.unsqueeze(1), features, 0.0)
    logits = torch.where(good.unsqueeze(1), logits, 0.0)
    if SUMS in kept:
        sums, tally = {SUMS: kept[SUMS]}, kept[TALLY]
    else:
        sums = head_supports(head, None)
        tally = sums[SUMS].new_zeros(3, dtype=torch.float64)
    sums = join(sums, features, logits.argmax(1), entropy(logits), good)
    theirs = features @ prototypes(sums).T
    spreads = [torch.where(good, scores.std(1), 0.0).double().sum() for scores in (logits, theirs)]
    return {**sums, TALLY: tally + torch.stack([*spreads, good.sum().double()])}


def blend(kept: Mapping[str, Tensor], logits: Tensor, features: Tensor) -> Tensor:
    """The head's logits and the prototypes', the latter stretched to the same spread.

    z = (1 − w) · (W f + b) + w · rho · f · v with v_c the unit prototype of class c,
    w = ½ · N / (N + 100 C) for N samples and C classes, and rho = Σ std_c(W f + b) / Σ std_c(f · v), over all
    samples since the last reset.
    """
    share, stretched = _share(kept), _stretched(kept)
    wide = at_least_single(logits)
    theirs = (at_least_single(features) @ stretched.T).to(wide.dtype)  # autocast may have narrowed it
    return torch.lerp(wide, theirs, share.to(wide.dtype)).to(logits.dtype)


def blended_head(kept: Mapping[str, Tensor], head: nn.Linear) -> Head:
    """The one linear layer that answers as `blend` does."""
    share = _share(kept)
    weight = at_least_single(head.weight.detach())
    weight = torch.lerp(weight, _stretched(kept), share.to(weight.dtype)).to(head.weight.dtype)
    return Head(weight, None if head.bias is None else head.bias.detach() * (1 - share).to(head.bias.dtype))


def _share(kept: Mapping[str, Tensor]) -> Tensor:
    samples = kept[TALLY][2]
    return samples / (samples + PRIOR * len(kept[SUMS])) / 2


def _stretched(kept: Mapping[str, Tensor]) -> Tensor:
    ours, theirs, _ = kept[TALLY]
    return prototypes(kept) * torch.where(theirs > 0, ours / theirs, 0.0).to(kept[SUMS].dtype)
