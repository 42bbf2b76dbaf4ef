"""What passes between the contract and a method for each batch."""

from typing import NamedTuple

from torch import Tensor


class SourceView(NamedTuple):
    """What the source model says of a batch: its logits, and the certainty regulariser's t and tau."""

    logits: Tensor
    t: Tensor
    tau: Tensor


class Outcome(NamedTuple):
    """What a method did with a batch.

    Attributes:
        logits: its answer, before tempering.
        loss: the loss of its step, if it took or tried one.
        used: how many samples the step learned from.
        reason: why the weights took no step; empty where they did.
        failed: whether the step went wrong: what the batch did to the statistics is undone.
    """

    logits: Tensor
    loss: Tensor | None
    used: int
    reason: str
    failed: bool
