"""Flags on the device: conditions for keeping the changes of a step."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

_FREE = ContextVar("reads on the CPU are free", default=True)


class Check(NamedTuple):
    """A condition for keeping the changes of a step.

    Attributes:
        holds: a single truth value on the device that computed it.
        otherwise: the reason to report if the condition does not hold.
        undoes: whether all changes of the batch are then undone; otherwise the batch only taught nothing.
        alarms: whether a captured step hands the next batches to the eager engine if it does not hold;
            always so for a check that undoes.
    """

    holds: Tensor
    otherwise: str
    undoes: bool = True
    alarms: bool = False


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


def all_hold(checks: Iterable[Check]) -> Tensor:
    """Whether all of at least one check hold, on the device of the first."""
    flags = [check.holds.reshape(()) for check in checks]
    # A model may be on several devices.
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()
