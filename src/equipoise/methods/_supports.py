"""T3A's supports: features with a class and an entropy, and the class prototypes that they sum to."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from equipoise.core.method import SUPPORTS, Memory
from equipoise.errors import ModelError, StateError
from equipoise.functional import at_least_single, entropy
from equipoise.network.head import WatchedHead, linear_layer, with_head
from equipoise.network.student import Student

CLASS_SUMS, VECTORS, ENTROPIES = f"{SUPPORTS}sums", f"{SUPPORTS}vectors", f"{SUPPORTS}entropies"
_AT_ONCE = 512  # rows of a head
_EMPTY = 1e4  # the entropy of a place without a support: more than any answer has, finite in half precision


def no_supports(head: Tensor, limit: int | None) -> dict[str, Tensor]:
    """Room for the supports of each class of a (C, D) head: `limit` of them, or their sum."""
    classes, width = head.shape
    if limit is None:
        return {CLASS_SUMS: head.new_zeros(classes, width)}
    return {
        VECTORS: head.new_zeros(classes, limit, width),
        ENTROPIES: head.new_full((classes, limit), _EMPTY),
    }


def join(
    supports: Memory, features: Tensor, classes: Tensor, bits: Tensor, good: Tensor
) -> dict[str, Tensor]:
    """The supports after features of some classes and entropies (in bits) have joined, those that are `good`.

    Of those over the limit, the ones of highest entropy leave for good.
    """
    units = normalize(torch.where(good.unsqueeze(1), features, 0.0), dim=1)
    if CLASS_SUMS in supports:
        every = torch.arange(len(supports[CLASS_SUMS]), device=classes.device)
        member = (classes.unsqueeze(1) == every).to(units.dtype)
        return {CLASS_SUMS: supports[CLASS_SUMS] + member.T @ units}
    vectors, entropies = supports[VECTORS], supports[ENTROPIES]
    limit = vectors.shape[1]
    own = (classes == torch.arange(len(vectors), device=classes.device).unsqueeze(1)) & good
    candidates = torch.cat([entropies, torch.where(own, bits, _EMPTY)], dim=1)
    lowest, places = candidates.sort(dim=1, stable=True)
    lowest, places = lowest[:, :limit], places[:, :limit]
    stayed = vectors.gather(1, places.clamp(max=limit - 1).unsqueeze(2).expand_as(vectors))
    joined = units[(places - limit).clamp(min=0)]
    chosen = torch.where((places < limit).unsqueeze(2), stayed, joined)
    return {VECTORS: chosen * (lowest < _EMPTY).unsqueeze(2), ENTROPIES: lowest}


def head_supports(head: nn.Linear, limit: int | None) -> dict[str, Tensor]:
    """The first supports: the rows of a head's weight, under the classes that the head gives them."""
    weight = at_least_single(head.weight.detach())
    supports = no_supports(weight, limit)
    for rows in weight.split(_AT_ONCE):  # all at once would be C² logits
        supports = join(
            supports, rows, *labels_and_entropies(head, rows), torch.ones_like(rows[:, 0], dtype=torch.bool)
        )
    return supports


def labels_and_entropies(head: nn.Linear, features: Tensor) -> tuple[Tensor, Tensor]:
    """The class and the entropy, in bits, that a head gives features, in single precision at least."""
    bias = None if head.bias is None else at_least_single(head.bias.detach())
    logits = linear(features, at_least_single(head.weight.detach()), bias)
    return logits.argmax(1), entropy(logits)


def prototypes(supports: Memory) -> Tensor:
    """A unit vector for each class, the direction of its supports' sum; zero for a class without any."""
    total = supports[CLASS_SUMS] if CLASS_SUMS in supports else supports[VECTORS].sum(1)
    return normalize(total, dim=1)


def current_supports(memory: Memory, head: WatchedHead, limit: int | None) -> Memory:
    """The supports in the memory; before the first batch, the rows of the head's weight."""
    if not memory:
        return head_supports(_layer(head), limit)
    if head_shape(memory) != _layer(head).weight.shape:
        raise StateError("the state's supports are those of another head")
    return memory


def join_batch(supports: Memory, head: WatchedHead, logits: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The supports after the features of a batch have joined, and which samples did: the finite ones."""
    features = _features(head)
    good = logits.isfinite().all(1) & features.isfinite().all(1)
    with torch.no_grad():
        wide = at_least_single(features)
        return join(supports, wide, *labels_and_entropies(_layer(head), wide), good), good


def scores(supports: Memory, head: WatchedHead, logits: Tensor) -> Tensor:
    """The scores of a batch by the prototypes, in the dtype that the model answers in."""
    return (at_least_single(_features(head)) @ prototypes(supports).T).to(logits.dtype)


def export_supports(student: Student, memory: Memory, head: str | None, limit: int | None) -> nn.Module:
    """The network with the prototypes as its head."""
    direct = bool(memory["direct"]) if "direct" in memory else student.head_is_output
    if head is None or direct is None:
        raise StateError("t3a finds the head in a forward: answer a batch before detach()")
    if not direct:
        raise ModelError(
            f"the model goes on after its head {head!r}, and t3a's answers do not: such a model "
            "cannot be detached"
        )
    layer = linear_layer(student.model, head)
    supports = memory if memory else head_supports(layer, limit)
    return with_head(student.model, head, prototypes(supports).to(layer.weight.dtype))


def check_supports(memory: Memory, model: nn.Module, head: str | None, limit: int | None) -> None:
    """Raise StateError unless supports are those of a limit, and of the head if its name is known."""
    if not memory:
        return
    if "direct" not in memory or not _fits(memory, limit):
        raise StateError(f"the state's supports are not those of supports={limit}")
    if head is not None and head_shape(memory) != linear_layer(model, head).weight.shape:
        raise StateError("the state's supports are those of another head")


def _fits(supports: Memory, limit: int | None) -> bool:
    """Whether supports are those of a limit."""
    names = {name for name in supports if name.startswith(SUPPORTS)}
    if limit is None:
        return names == {CLASS_SUMS} and supports[CLASS_SUMS].ndim == 2
    if names != {VECTORS, ENTROPIES} or supports[VECTORS].ndim != 3:
        return False
    return supports[VECTORS].shape[1] == limit and supports[ENTROPIES].shape == supports[VECTORS].shape[:2]


def head_shape(supports: Memory) -> torch.Size:
    """The (C, D) of the head that supports belong to."""
    tensor = supports[CLASS_SUMS] if CLASS_SUMS in supports else supports[VECTORS]
    return torch.Size((tensor.shape[0], tensor.shape[-1]))


def _layer(head: WatchedHead) -> nn.Linear:
    if head.layer is None:
        raise RuntimeError("expected a watched forward before")
    return head.layer


def _features(head: WatchedHead) -> Tensor:
    if head.features is None:
        raise RuntimeError("expected a watched forward before")
    return head.features
