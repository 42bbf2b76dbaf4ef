"""The verdict on a batch: did this step count, and who decides?

Three questions, in this order, each answered by flags: truth values on the device that computed them.

    1. Which rows can be judged?    rows      inputs are finite; so are the source model's logits, where it is
                                              asked, and not zero
    2. May anything be learned?     allowed   all rows of the step can be judged
    3. Is what was learned kept?    keep      it was allowed, and no check fails whose failure means "undo"

        batch ── rows ── allowed ── method.step ── checks ── keep ── answer and record
                            │            │            └ a Check that fails means "undo", "skip" or "alarm"
                            └────────────┴ student.descend: no step unless it is allowed and all checks hold

The flags decide, whoever reads them. An eager step has a host that waits for them (`host_looks`): it leaves
bad rows out, repeats the step without those that the source model cannot judge, and undoes what is not kept.
In a captured step nobody waits: copies of good rows take the places of bad ones, masks keep or undo, and the
host learns of a failure some batches later. Where reading is free, on the CPU, `host_knows` saves work in
both.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

OnFailure: TypeAlias = Literal["undo", "skip", "alarm"]
"""The consequence of a check that fails. "undo": all changes of the batch are undone. "skip": no step is
taken. "alarm": the method has undone the step by itself. After "undo" and "alarm" a captured step hands the
next batches to the eager engine."""

_FREE = ContextVar("reads on the CPU are free", default=True)


class Check(NamedTuple):
    """A condition for keeping the changes of a step.

    Attributes:
        holds: a single truth value on the device that computed it.
        otherwise: the reason to report if the condition does not hold.
        on_failure: the consequence if it does not.
    """

    holds: Tensor
    otherwise: str
    on_failure: OnFailure = "undo"


class JudgedRows(NamedTuple):
    """The rows of a batch that can be judged.

    Attributes:
        good: for each row, whether it can be learned from.
        silent: rows that are not good because the source model's logits are zero.
    """

    good: Tensor
    silent: Tensor

    def without(self, others: "JudgedRows") -> "JudgedRows":
        """The same rows after a verdict on the good ones among them."""
        good, silent = self.good.clone(), self.silent.clone()
        good[self.good], silent[self.good] = others.good, others.silent
        return JudgedRows(good, silent)

    def with_nan(self, answers: Tensor) -> Tensor:
        """The answers to good rows in their places, NaN for all others; `answers` as in `masked`."""
        return self._replace(silent=torch.zeros_like(self.silent)).masked(answers)

    def masked(self, answers: Tensor) -> Tensor:
        """The answers to good rows in their places, zeros for silent rows and NaN for the other ones.

        `answers` has all rows, or the good ones alone.
        """
        fill = torch.where(self.silent, 0.0, torch.nan).to(answers).unsqueeze(1)
        good = self.good.to(answers.device)
        if len(answers) == len(good):
            return torch.where(good.unsqueeze(1), answers, fill)
        whole = fill.repeat(1, answers.shape[1])
        whole[good] = answers
        return whole


class Reading(NamedTuple):
    """A verdict as the host has read it.

    Attributes:
        kept: whether something was learned and kept.
        tried: whether a step was taken, kept or not.
        aside: the number of rows that could not be judged.
        reason: why nothing was learned, or why rows were set aside; empty otherwise.
    """

    kept: bool
    tried: bool
    aside: int
    reason: str


class StepVerdict(NamedTuple):
    """The answers to the three questions.

    Attributes:
        rows: the rows of this process that can be judged.
        allowed: whether all rows of the step, those of all processes, can.
        checks: the conditions for keeping what was learned.
        idle: the reason why nothing was learned, as far as the host knew; empty otherwise.
        captured: whether the step was a CUDA graph, which learns from whole batches only.
    """

    rows: JudgedRows
    allowed: Tensor
    checks: tuple[Check, ...] = ()
    idle: str = ""
    captured: bool = False

    def keep(self) -> Tensor:
        """Whether the changes of the step are kept."""
        return all_hold((check for check in self.checks if check.on_failure == "undo"), self.allowed)

    def calm(self) -> Tensor:
        """Whether a captured step gives no reason to run the next batches eagerly."""
        return all_hold((check for check in self.checks if check.on_failure != "skip"), self.allowed)

    def read(self) -> Reading:
        """Copy the flags to the host; waits for the device."""
        broken = next((check for check in self.checks if not bool(check.holds)), None)
        reason = broken.otherwise if broken else self.idle
        aside, silent = int((~self.rows.good).sum()), int(self.rows.silent.sum())
        counts = {"non-finite": aside - silent, "zero source logits": silent}
        samples = len(self.rows.good)
        causes = [f"{count} of {samples} set aside: {why}" for why, count in counts.items() if count]
        if self.captured and aside:
            causes.append("a captured step learns from whole batches")
        kept = bool(self.allowed) and not reason and broken is None
        tried = broken is None or broken.on_failure != "skip"
        return Reading(kept, tried, aside, "; ".join(filter(None, (reason, *causes))))


def all_hold(checks: Iterable[Check], allowed: Tensor | None = None) -> Tensor:
    """Whether all checks hold and the step is allowed; there is at least one check, or `allowed`."""
    flags = [check.holds for check in checks] if allowed is None else [allowed, *(c.holds for c in checks)]
    # A model may be on several devices.
    return torch.stack([flag.to(flags[0].device).reshape(()) for flag in flags]).all()


def host_knows(flag: Tensor) -> bool | None:
    """The value of a flag where reading it is free, on the CPU; None where the host would wait for it.

    Code that could save work asks here, and uses masks and flags where the answer is None.
    """
    return bool(flag) if reads_are_free(flag.device) else None


def reads_are_free(device: torch.device) -> bool:
    """Whether the host can read tensors of a device without waiting for it."""
    return device.type == "cpu" and _FREE.get()


@contextmanager
def no_free_reads() -> Iterator[None]:
    """Treat the CPU as a GPU in the block: code that asks before it reads takes its other path."""
    before = _FREE.set(False)
    try:
        yield
    finally:
        _FREE.reset(before)
