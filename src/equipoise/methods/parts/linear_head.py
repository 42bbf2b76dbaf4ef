"""The linear head of a model: the features that it gets, and class prototypes made of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from equipoise.core.method import SUPPORTS, Memory
from equipoise.core.student import Student
from equipoise.functional import at_least_single, entropy
from equipoise.network.batch import Batch

CLASS_SUMS, VECTORS, ENTROPIES = f"{SUPPORTS}sums", f"{SUPPORTS}vectors", f"{SUPPORTS}entropies"
_AT_ONCE = 512  # rows of a head
_EMPTY = 1e4  # the entropy of a place without a support: more than any answer has, finite in half precision


class HeadAnswers(NamedTuple):
    """Logits of a batch with the features that they are computed from.

    Attributes:
        logits: the model's output.
        features: the (N, D) input of the head, at least in single precision.
        head: the linear layer.
        good: whether logits and features of a sample are finite.
        direct: whether the head's output is the model's.
    """

    logits: Tensor
    features: Tensor
    head: nn.Linear
    good: Tensor
    direct: bool = True


def head_answers(
    student: Student,
    batch: Batch,
    name: str | None = None,
    *,
    forward: Callable[[Batch], Tensor] | None = None,
) -> HeadAnswers:
    """Run a forward, in eval mode unless another is given, with the features of the head.

    ModelError where the model has no linear head.
    """
    with student.watched(name or student.head, required=True) as seen:
        logits = student.frozen(batch) if forward is None else forward(batch)
    if seen.layer is None or seen.features is None:
        raise RuntimeError("expected a watched forward before")
    features = at_least_single(seen.features)
    good = logits.isfinite().all(1) & features.isfinite().all(1)
    return HeadAnswers(logits, features, seen.layer, good, seen.is_output)


def on_student(tensor: Tensor, student: Student) -> Tensor:
    """A tensor of the source statistics on the student's device, in its type or in single precision."""
    like = next((p for p in student.model.parameters() if p.is_floating_point()), torch.empty(0))
    return tensor.to(student.device, at_least_single(like).dtype)


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
    """The first supports: the rows of a head's weight, under the classes that the head gives them.

    Of each class there are at most `limit`, or without a limit their sum.
    """
    weight = at_least_single(head.weight.detach())
    classes, width = weight.shape
    supports = {CLASS_SUMS: weight.new_zeros(classes, width)}
    if limit is not None:
        entropies = weight.new_full((classes, limit), _EMPTY)
        supports = {VECTORS: weight.new_zeros(classes, limit, width), ENTROPIES: entropies}
    for rows in weight.split(_AT_ONCE):  # all at once would be C² logits
        every = torch.ones_like(rows[:, 0], dtype=torch.bool)
        supports = join(supports, rows, *labels_and_entropies(head, rows), every)
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
