"""Prediction sets: scores of classes, the sets below a threshold, and the threshold of held-out scores."""

import math

import torch
from torch import Tensor

from equipoise.errors import BatchError
from equipoise.functional import at_least_single
from equipoise.options import number, one_of

SCORES = ("lac", "aps", "raps")
"""The nonconformity scores that sets can be made of."""

RANK_PENALTY, FREE_RANKS = 0.01, 5
"""Of RAPS: what each class costs after the first few, and how many are free; the authors' for ImageNet."""


def class_scores(probabilities: Tensor, score: str) -> Tensor:
    """The nonconformity score of every class, (…, C): the smaller, the likelier.

    With p the probabilities, and o_c the place of class c when they fall, from 1 (of equal ones the class of
    the lower index comes first):

        lac:   1 − p_c
        aps:   Σ p_k over the classes with o_k < o_c
        raps:  aps + .01 · max(0, o_c − 5)

    LAC: Sadinle, Lei and Wasserman, JASA 2019, whose sets are the smallest, and empty where no class is
    likely. APS: Romano, Sesia and Candès, NeurIPS 2020; RAPS: Angelopoulos et al., ICLR 2021; both without
    their random part, so that the same answer has the same set: the first class scores 0 and is in every set,
    and so is the class at which the mass reaches the threshold.
    """
    one_of("score", score, SCORES)
    if score == "lac":
        return 1 - probabilities
    falling, order = probabilities.sort(dim=-1, descending=True, stable=True)
    mass = falling.cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[..., :1]), mass[..., :-1]], -1)
    if score == "raps":
        place = torch.arange(1, 1 + falling.shape[-1], device=falling.device, dtype=falling.dtype)
        before = before + RANK_PENALTY * (place - FREE_RANKS).clamp(min=0)
    return torch.empty_like(before).scatter(-1, order, before)


def sets(logits: Tensor, threshold: Tensor | float, *, score: str = "lac") -> Tensor:
    """The prediction sets of logits (N, C): the classes whose score is at most the threshold, bool (N, C).

    The scores are those of softmax(logits) (`class_scores`), so the logits are calibrated ones, and the
    threshold is of scores of the same kind: `set_threshold` of held-out ones. A row with NaN has all classes:
    nothing is known of it.

    Args:
        logits: of the classes, (N, C).
        threshold: the largest score of a class in the set; one number.
        score: "lac", "aps" or "raps".

    >>> logits = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]).log()
    >>> sets(logits, 0.7)
    tensor([[ True, False, False],
            [ True,  True, False]])
    >>> sets(logits, 0.5, score="aps")
    tensor([[ True, False, False],
            [ True,  True, False]])
    """
    if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
        kind = (
            f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        )
        raise BatchError(f"expected logits (N, C) as a tensor of floats, got {kind}")
    scores = class_scores(at_least_single(logits).softmax(-1), score)
    return ~(scores > threshold)


def set_threshold(scores: Tensor, coverage: float) -> Tensor:
    """The threshold of split conformal prediction: the ⌈(n + 1) · coverage⌉-th smallest of n scores.

    The scores are those of the right classes of held-out samples, (n). Sets of further samples from the same
    distribution have the right class in at least that share. Infinity, which lets in every class, where that
    place is beyond n. Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.

    >>> set_threshold(torch.tensor([0.1, 0.4, 0.2, 0.3]), 0.8)
    tensor(0.4000)
    """
    coverage = number("coverage", coverage, low=0, high=1)
    ordered = scores[~scores.isnan()].sort().values
    place = math.ceil(round((len(ordered) + 1) * coverage, 9))
    if place > len(ordered):
        return ordered.new_tensor(math.inf)
    return ordered[max(place, 1) - 1]
