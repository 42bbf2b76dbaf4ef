"""Samples in the slots of a memory, as they came: what the memories of all methods share."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise.core.method import SAMPLES, Context, Counts, Memory, Plan
from equipoise.errors import BatchError, StateError
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part

SLOT_CLASSES = "classes"
"""The memory of the class in each slot, -1 where it is free."""

MOST = 2**20
"""The largest capacity of a memory: more samples would be no recent ones, and fit on no machine."""

_WAITING, _FULL = "waiting", "full"

STORING_COUNTERS = (_WAITING, _FULL)
"""The counters of a method with a memory: samples since the last update, and whether every slot is taken."""


def free(capacity: int, device: torch.device) -> dict[str, Tensor]:
    """A memory without samples, whose shapes come with the first batch."""
    return {SLOT_CLASSES: torch.full((capacity,), -1, device=device)}


def full(stored: Memory) -> Tensor:
    """Whether every slot has a sample: a flag on the device."""
    return (stored[SLOT_CLASSES] >= 0).all()


def emptied(stored: Memory, where: Tensor) -> dict[str, Tensor]:
    """The classes in the slots, all free where a flag on the device is true."""
    return {SLOT_CLASSES: torch.where(where, -1, stored[SLOT_CLASSES])}


def placed(store: Tensor, rows: Tensor, taker: Tensor) -> Tensor:
    """A store with, in each slot that was taken, the row of its taker; -1: by none."""
    if not len(rows):
        return store
    taken = (taker >= 0).view(-1, *[1] * (rows.dim() - 1))
    return torch.where(taken, rows[taker.clamp(min=0)], store)


def placed_samples(stored: Memory, samples: Memory, taker: Tensor) -> dict[str, Tensor]:
    """The memory of samples, "samples.*" with a row for each slot, after some slots were taken."""
    news = {}
    for name, rows in samples.items():
        old = stored.get(SAMPLES + name)
        store = rows.new_zeros(len(taker), *rows.shape[1:]) if old is None else old
        news[SAMPLES + name] = placed(store, rows, taker.to(rows.device))
    return news


def storable(stored: Memory, batch: Batch, gather: Callable[[Tensor, str], Tensor]) -> dict[str, Tensor]:
    """The tensors of a batch that the memory stores, of all processes; BatchError for other shapes."""
    samples, stores = batch.samples(), part(stored, SAMPLES)
    for name, store in stores.items():
        came = samples.get(name)
        expected = f"samples are stored in one memory: expected input {name} as {store.dtype} "
        expected += f"{tuple(store.shape[1:])} a sample"
        if came is None:
            raise BatchError(f"{expected}, as in the first batch, got none with a row for each sample")
        if came.shape[1:] != store.shape[1:] or came.dtype != store.dtype:
            hint = "; pad them to one shape" if came.dtype == store.dtype else ""
            raise BatchError(f"{expected}, got {came.dtype} {tuple(came.shape[1:])}{hint}")
    return {n: gather(rows, "samples") for n, rows in samples.items() if not stores or n in stores}


def remembered(stored: Memory, like: Batch, *, whole: bool) -> Batch | None:
    """The samples in the memory as a batch; what belongs to all samples is that of `like`.

    `whole`: as many as there are slots, filled or not; else those that are there, None without any.
    """
    stores, filled = part(stored, SAMPLES), stored[SLOT_CLASSES] >= 0
    if whole:
        return like.with_samples(stores)
    if not bool(filled.any()):
        return None
    return like.with_samples({name: t[filled.to(t.device)] for name, t in stores.items()})


def check_stored(stored: Memory, counts: Counts, capacity: int, every: int, num_classes: int | None) -> None:
    """Raise StateError for a memory of another size or other classes, or where an update is long due."""
    if not 0 <= (waiting := counts[_WAITING]) < every:
        raise StateError(f"expected fewer than every={every} samples waiting, got {waiting}")
    sizes = {len(tensor) for tensor in part(stored, SAMPLES).values()}
    if sizes - {capacity} or (bool((stored[SLOT_CLASSES] >= 0).any()) and not sizes):
        raise StateError(f"expected a memory of {capacity} samples, got {sorted(sizes)}")
    if int(stored[SLOT_CLASSES].min()) < -1 or int(stored[SLOT_CLASSES].max()) >= (num_classes or math.inf):
        raise StateError("the memory has samples of classes that the model does not have")


def plan_updates(context: Context, every: int) -> Plan:
    """Decide after which samples an update is due, every so many; not captured before the memory is full."""
    is_full = bool(full(context.memory) if context.host_looks else context.counts[_FULL])
    end = int(context.counts[_WAITING]) + context.student.all_rows(context.batch)
    due = tuple(end >= every * (window + 1) for window in range((end - 1) // every + 1))
    idle = "" if any(due) else f"{every - end % every} samples until the next update"
    return Plan(due, {_WAITING: end % every, _FULL: int(is_full)}, idle, captured=is_full)


def windows(context: Context, rows: int, every: int) -> Iterator[tuple[Tensor, bool]]:
    """The samples of a batch between updates: which they are, and whether an update is due after them."""
    waiting = context.counts[_WAITING]
    places = waiting + torch.arange(rows, device=waiting.device)
    for window, due in enumerate(context.plan.course):
        yield places // every == window, due
