"""Blend a linear head with class prototypes; their weight grows with the number of samples."""

import torch
from torch import Tensor, nn

from equipoise.core.method import Memory
from equipoise.errors import StateError
from equipoise.functional import at_least_single, entropy
from equipoise.methods._supports import CLASS_SUMS, head_supports, join, prototypes
from equipoise.network.head import WatchedHead, linear_layer, with_head
from equipoise.network.student import Student

SPREAD_TOTALS = "spread_totals"
"""Sums over all samples: the spread over the classes of the head's logits, of the prototypes', and 1."""

PROTOTYPES = (CLASS_SUMS, SPREAD_TOTALS)
"""The names of the memory of prototypes."""

HALF_WEIGHT_SAMPLES = 100
"""The samples for each class at which prototypes have half of the weight that they can have."""


def learn(memory: Memory, head: WatchedHead, logits: Tensor) -> dict[str, Tensor]:
    """The prototypes after a batch: each feature joins the class of the head's logits; none without a head.

    Before the first batch the rows of the head's weight join, as in T3A (`_supports.join`).
    """
    if head.layer is None or head.features is None:
        return {}
    features, logits = at_least_single(head.features.detach()), at_least_single(logits.detach())
    with torch.autocast(features.device.type, enabled=False):
        return _learned(memory, head.layer, features, logits)


def _learned(memory: Memory, head: nn.Linear, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
    good = features.isfinite().all(1) & logits.isfinite().all(1)
    features = torch.where(good.unsqueeze(1), features, 0.0)
    logits = torch.where(good.unsqueeze(1), logits, 0.0)
    if CLASS_SUMS in memory:
        if memory[CLASS_SUMS].shape != head.weight.shape:
            raise StateError("the state's prototypes are not those of this model's head")
        sums, tally = {CLASS_SUMS: memory[CLASS_SUMS]}, memory[SPREAD_TOTALS]
    else:
        sums = head_supports(head, None)
        tally = sums[CLASS_SUMS].new_zeros(3, dtype=torch.float64)
    sums = join(sums, features, logits.argmax(1), entropy(logits), good)
    theirs = features @ prototypes(sums).T
    spreads = [torch.where(good, scores.std(1), 0.0).double().sum() for scores in (logits, theirs)]
    return {**sums, SPREAD_TOTALS: tally + torch.stack([*spreads, good.sum().double()])}


def blend(memory: Memory, head: WatchedHead, logits: Tensor, new: Tensor | None = None) -> Tensor:
    """The head's logits and the prototypes', the latter stretched to the same spread.

    z = (1 − w) · (W f + b) + w · rho · f · v with v_c the unit prototype of class c,
    w = ½ · N / (N + 100 C) for N samples and C classes, and rho = Σ std_c(W f + b) / Σ std_c(f · v), over all
    samples since the last reset. Without a linear head or prototypes, the logits are the model's. Where
    inputs have changed in part, w is multiplied by that share (`new`; None: 1).
    """
    if head.features is None or CLASS_SUMS not in memory:
        return logits
    share, stretched = _share(memory, new), _stretched(memory)
    wide = at_least_single(logits)
    theirs = (at_least_single(head.features) @ stretched.T).to(wide.dtype)  # autocast may have narrowed it
    return torch.lerp(wide, theirs, share.to(wide.dtype)).to(logits.dtype)


def export_blended(student: Student, memory: Memory, new: Tensor | None = None) -> nn.Module:
    """A copy of the network whose one linear head answers as `blend` does."""
    if CLASS_SUMS not in memory:
        return student.export()
    if student.head is None:
        raise StateError("poise finds the head in a forward: answer a batch before detach()")
    layer, share = linear_layer(student.model, student.head), _share(memory, new)
    weight = at_least_single(layer.weight.detach())
    weight = torch.lerp(weight, _stretched(memory), share.to(weight.dtype)).to(layer.weight.dtype)
    bias = None if layer.bias is None else layer.bias.detach() * (1 - share).to(layer.bias.dtype)
    return with_head(student.model, student.head, weight, bias)


def check_prototypes(memory: Memory, classes: int | None) -> None:
    """Raise StateError for prototypes without their totals, or of another number of classes."""
    shapes = [tuple(memory[name].shape) for name in (CLASS_SUMS, SPREAD_TOTALS) if name in memory]
    fits = len(shapes) == 2 and len(shapes[0]) == 2 and shapes[1] == (3,)
    if shapes and not (fits and shapes[0][0] == classes):
        raise StateError("the state's prototypes are not those of this model's head")


def _share(memory: Memory, new: Tensor | None) -> Tensor:
    samples = memory[SPREAD_TOTALS][2]
    most = samples / (samples + HALF_WEIGHT_SAMPLES * len(memory[CLASS_SUMS])) / 2
    return most if new is None else most * new.to(most)


def _stretched(memory: Memory) -> Tensor:
    ours, theirs, _ = memory[SPREAD_TOTALS]
    return prototypes(memory) * torch.where(theirs > 0, ours / theirs, 0.0).to(memory[CLASS_SUMS].dtype)
