"""T3A's supports: features with a class and an entropy, and the prototypes they make."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from equipoise.functional import at_least_single, entropy
from equipoise.network.named_tensors import SUPPORTS

SUMS, VECTORS, ENTROPIES = f"{SUPPORTS}sums", f"{SUPPORTS}vectors", f"{SUPPORTS}entropies"
_AT_ONCE = 512  # rows of a head
_EMPTY = 1e4  # the entropy of a place without a support: more than any answer has, finite in half precision


def no_supports(head: Tensor, limit: int | None) -> dict[str, Tensor]:
    """Room for the supports of each class of a (C, D) head: `limit` of them, or their sum."""
    classes, width = head.shape
    if limit is None:
        return {SUMS: head.new_zeros(classes, width)}
    return {
        VECTORS: head.new_zeros(classes, limit, width),
        ENTROPIES: head.new_full((classes, limit), _EMPTY),
    }


def join(
    supports: Mapping[str, Tensor], features: Tensor, classes: Tensor, bits: Tensor, good: Tensor
) -> dict[str, Tensor]:
    """The supports after features of some classes and entropies (in bits) have joined, those that are `good`.

    Of those over the limit, the ones of highest entropy leave for good.
    """
    units = normalize(torch.where(good.unsqueeze(1), features, 0.0), dim=1)
    if SUMS in supports:
        every = torch.arange(len(supports[SUMS]), device=classes.device)
        member = (classes.unsqueeze(1) == every).to(units.dtype)
        return {SUMS: supports[SUMS] + member.T @ units}
    vectors, entropies = supports[VECTORS], supports[ENTROPIES]
    limit = vectors.shape[1]
    own = (classes == torch.arange(len(vectors), device=classes.device).unsqueeze(1)) & good
    everyone = torch.cat([entropies, torch.where(own, bits, _EMPTY)], dim=1)
    lowest, places = everyone.sort(dim=1, stable=True)
    lowest, places = lowest[:, :limit], places[:, :limit]
    stayed = vectors.gather(1, places.clamp(max=limit - 1).unsqueeze(2).expand_as(vectors))
    joined = units[(places - limit).clamp(min=0)]
    chosen = torch.where((places < limit).unsqueeze(2), stayed, joined)
    return {VECTORS: chosen * (lowest < _EMPTY).unsqueeze(2), ENTROPIES: lowest}


def head_supports(head: nn.Linear, limit: int | None) -> dict[str, Tensor]:
    """The first supports: the rows of a head's weight, under what the head itself says of them."""
    weight = at_least_single(head.weight.detach())
    supports = no_supports(weight, limit)
    for rows in weight.split(_AT_ONCE):  # all at once would be C² logits
        supports = join(supports, rows, *told(head, rows), torch.ones_like(rows[:, 0], dtype=torch.bool))
    return supports


def told(head: nn.Linear, features: Tensor) -> tuple[Tensor, Tensor]:
    """The class and the entropy, in bits, that a head gives features, in single precision at least."""
    bias = None if head.bias is None else at_least_single(head.bias.detach())
    logits = linear(features, at_least_single(head.weight.detach()), bias)
    return logits.argmax(1), entropy(logits)


def prototypes(supports: Mapping[str, Tensor]) -> Tensor:
    """A unit vector for each class, the direction of its supports' sum; zero for a class without any."""
    total = supports[SUMS] if SUMS in supports else supports[VECTORS].sum(1)
    return normalize(total, dim=1)


def fits(supports: Mapping[str, Tensor], limit: int | None) -> bool:
    """Whether supports are those of a limit."""
    names = {name for name in supports if name.startswith(SUPPORTS)}
    if limit is None:
        return names == {SUMS} and supports[SUMS].ndim == 2
    if names != {VECTORS, ENTROPIES} or supports[VECTORS].ndim != 3:
        return False
    return supports[VECTORS].shape[1] == limit and supports[ENTROPIES].shape == supports[VECTORS].shape[:2]


def head_shape(supports: Mapping[str, Tensor]) -> torch.Size:
    """The (C, D) of the head that supports belong to."""
    tensor = supports[SUMS] if SUMS in supports else supports[VECTORS]
    return torch.Size((tensor.shape[0], tensor.shape[-1]))
