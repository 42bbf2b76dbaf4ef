"""The features that a model's linear head gets, for methods that work on them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.network.head import WatchedHead
from equipoise.network.student import Student


class HeadAnswers(NamedTuple):
    """Logits of a batch with the features that they are computed from.

    Attributes:
        logits: the head's output, which is the model's.
        features: the (N, D) input of the head, at least in single precision.
        head: the linear layer.
        good: whether logits and features of a sample are finite.
    """

    logits: Tensor
    features: Tensor
    head: nn.Linear
    good: Tensor


def head_answers(student: Student, batch: Batch) -> HeadAnswers:
    """Run a forward in eval mode with the features of the head; ModelError where the model has none."""
    with student.watched(student.head, required=True) as seen:
        logits = student.frozen(batch)
    return seen_answers(logits, seen)


def seen_answers(logits: Tensor, seen: WatchedHead) -> HeadAnswers:
    """The logits of a forward in which the head was watched, with its features."""
    if seen.layer is None or seen.features is None:
        raise RuntimeError("expected a watched forward before")
    features = at_least_single(seen.features)
    good = logits.detach().isfinite().all(1) & features.detach().isfinite().all(1)
    return HeadAnswers(logits, features, seen.layer, good)


def mean_offset(seen: HeadAnswers, centre: Tensor, reach: Tensor) -> Tensor:
    """The mean of the features of good samples minus a centre; zero without any.

    A sample further from the centre than `reach` counts as one at that distance, in its direction.
    """
    apart = torch.where(seen.good.unsqueeze(1), seen.features - centre, 0.0)
    far: Tensor = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
    clipped = apart * (reach / far.clamp(min=torch.finfo(far.dtype).tiny)).clamp(max=1)
    return clipped.sum(0) / seen.good.sum().clamp(min=1)


def on_student(tensor: Tensor, student: Student) -> Tensor:
    """A tensor of the source statistics on the student's device, in its type or in single precision."""
    like = next((p for p in student.model.parameters() if p.is_floating_point()), torch.empty(0))
    return tensor.to(student.device, at_least_single(like).dtype)
