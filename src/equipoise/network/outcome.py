"""What passes between the contract and a method for each batch."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Check(NamedTuple):
    """Something that must hold for what a step does.

    Attributes:
        holds: whether it does, a single truth value on the device that found out.
        otherwise: what to say if it does not.
        undoes: whether everything that the batch did to the adapter is then undone; else just nothing was
            learned.
        alarms: whether the host should look at the next batches itself, where it has not been looking.
    """

    holds: Tensor
    otherwise: str
    undoes: bool = True
    alarms: bool = False


def known(truth: Tensor) -> bool | None:
    """A truth value where looking costs nothing; None on a device that works while the host goes on.

    Looking there would make the host wait for it, and a CUDA graph cannot have that: methods that can save
    work look here, and make do with masks where the answer is None.
    """
    return bool(truth) if truth.device.type == "cpu" else None


def all_hold(checks: Iterable[Check]) -> Tensor:
    """Whether all of at least one check hold, on their device."""
    flags = [check.holds.reshape(()) for check in checks]
    # A model may be on several devices.
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()


def first_broken(checks: tuple[Check, ...]) -> Check | None:
    """The first check known not to hold."""
    return next((check for check in checks if known(check.holds) is False), None)


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
        reason: why nothing was learned, if that is known by now; empty otherwise.
        failed: whether it is known by now that the step went wrong: everything the batch did to the adapter
            is undone.
        checks: what must hold for all this, where the host does not know yet.
    """

    logits: Tensor
    loss: Tensor | None = None
    used: int | Tensor = 0
    reason: str = ""
    failed: bool = False
    checks: tuple[Check, ...] = ()


def judged(outcome: Outcome) -> Outcome:
    """The outcome, or why it failed if a check is known not to hold."""
    broken = first_broken(tuple(check for check in outcome.checks if check.undoes))
    return outcome._replace(reason=broken.otherwise, failed=True) if broken else outcome
