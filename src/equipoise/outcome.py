"""What passes between the contract and a method for each batch."""

from typing import NamedTuple

from torch import Tensor


class SourceView(NamedTuple):
    """What the source model says of a batch.

    Attributes:
        logits: its logits.
        features: what its linear head got, for a method that asks for it.
        t: the certainty regulariser's t of each sample.
        tau: its tau.
    """

    logits: Tensor
    features: Tensor | None
    t: Tensor
    tau: Tensor

    def select(self, keep: Tensor) -> "SourceView":
        """The same of some samples."""
        return SourceView(
            self.logits[keep],
            None if self.features is None else self.features[keep],
            self.t[keep],
            self.tau[keep],
        )


class Outcome(NamedTuple):
    """What a method did with a batch.

    Attributes:
        logits: its answer, before tempering.
        loss: the loss of its step, if it took or tried one.
        used: how many samples the step learned from.
        reason: why nothing was learned; empty where something was.
        failed: whether the step went wrong: everything the batch did to the adapter is undone.
    """

    logits: Tensor
    loss: Tensor | None = None
    used: int = 0
    reason: str = ""
    failed: bool = False
