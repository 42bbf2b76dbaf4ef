"""A memory of samples, one in each slot, and updates from it: an update that goes wrong empties it."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core.gradient import OPTIMIZER, GradientMethod
from equipoise.core.method import SAMPLES, Context, Counts, Memory, Plan, Shapes, Update
from equipoise.core.optimizer import Optimizer, Slope
from equipoise.core.student import Student
from equipoise.core.verdict import Check, all_hold
from equipoise.errors import BatchError, StateError
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed

SLOT_CLASSES = "classes"
"""The memory of the class in each slot, -1 where it is free."""

MOST = 2**20
"""The largest capacity of a memory: more samples would be no recent ones, and fit on no machine."""

_WAITING, _FULL = "waiting", "full"


class StoringMethod(GradientMethod):
    """A gradient method that learns from a memory of samples, after each `every` of them.

    No dataclass: a subclass has the options, in an order of its own.
    """

    stores_samples = True
    counters: ClassVar[Mapping[str, str | None]] = {_WAITING: "every", _FULL: None}
    arrives: ClassVar[Shapes] = {f"{SAMPLES}*": ("capacity", ...)}

    capacity: int
    every: int

    def plan(self, context: Context) -> Plan:
        """Decide after which samples an update is due; not captured before the memory is full."""
        is_full = bool(full(context.memory) if context.host_looks else context.counts[_FULL])
        end = int(context.counts[_WAITING]) + context.student.all_rows(context.batch)
        due = tuple(end >= self.every * (window + 1) for window in range((end - 1) // self.every + 1))
        idle = "" if any(due) else f"{self.every - end % self.every} samples until the next update"
        return Plan(due, {_WAITING: end % self.every, _FULL: int(is_full)}, idle, captured=is_full)

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse a memory of another size, with classes that the model lacks, or without its samples."""
        super().check_memory(student, memory, counts)
        classes = memory[SLOT_CLASSES]
        if int(classes.min()) < -1 or int(classes.max()) >= (student.classes or math.inf):
            raise StateError("the memory has samples of classes that the model does not have")
        if int(classes.max()) >= 0 and not part(memory, SAMPLES):
            raise StateError(f"expected a memory of {len(classes)} samples, got none")


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


def windows(context: Context, rows: int, every: int) -> Iterator[tuple[Tensor, bool]]:
    """The samples of a batch between updates: which they are, and whether an update is due after them."""
    waiting = context.counts[_WAITING]
    places = waiting + torch.arange(rows, device=waiting.device)
    for window, due in enumerate(context.plan.course):
        yield places // every == window, due


def memory_step(
    context: Context,
    logits: Tensor,
    every: int,
    join: Callable[[Memory, Tensor], dict[str, Tensor]],
    learn: Callable[[Context, Batch, Tensor], Update],
) -> Update:
    """Let the samples of a batch join a memory, and learn from it after each `every` samples.

    Args:
        context: the step's.
        logits: the answers to the batch.
        every: samples between updates.
        join: the memory after the samples that a mask chooses were offered to it.
        learn: an update, given the context with the memory as it is then, the samples in it, and `logits`.
    """
    memory, update = dict(context.memory), Update(logits)
    for inside, due in windows(context, len(logits), every):
        memory |= join(memory, inside)
        if due:
            stored = remembered(memory, context.batch, whole=not context.host_looks)
            if stored is None:
                update = Update(logits, idle="the memory is empty: no sample has entered it")
            else:
                update = learn(context._replace(memory=memory), stored, logits)
            memory |= update.memory
    return update._replace(memory=memory)


def learn_from_memory(
    context: Context,
    stored: Batch,
    logits: Tensor,
    slope_of: Callable[[], tuple[Tensor, Slope]],
    descent: Optimizer,
    steps: int,
) -> Update:
    """Take steps on the samples in the memory; if that goes wrong, undo them and empty the memory.

    Args:
        context: the step's, with the memory as it is now.
        stored: the samples in the memory.
        logits: the answers to the batch, for the `Update`.
        slope_of: the loss of the samples in the memory, and its gradient.
        descent: the optimiser.
        steps: how many.
    """
    student, memory, old = context.student, context.memory, part(context.memory, OPTIMIZER)
    guard = Check(full(memory) | context.host_looks, "the memory is not full")
    loss, state, checks = logits.new_zeros(()), old, tuple[Check, ...]((guard,))
    with student.replicated(), student.undo_unless() as settle:
        for _ in range(steps):
            loss, found = slope_of()
            finite = student.finite_statistics()
            state, checks = student.descend(
                partial(Slope, *found), descent, state, *checks, finite, allowed=context.allowed
            )
        fine = all_hold(checks)
        settle(fine)
    news = prefixed(OPTIMIZER, {n: torch.where(fine, new, old[n]) for n, new in state.items()})
    news |= emptied(memory, guard.holds & ~fine)
    fatal = [c._replace(otherwise=f"{c.otherwise}: the memory was emptied") for c in checks[1:]]
    reported = tuple(check._replace(on_failure="alarm") for check in (guard, *fatal))
    return Update(logits, news, used=stored.rows, loss=loss.detach(), checks=reported)


def keep_if_fine(update: Update, old: Memory, news: Memory) -> Update:
    """An update with more new memory, which stays as it was where the update went wrong."""
    fine = all_hold(update.checks)
    kept = {name: torch.where(fine, new, old[name]) for name, new in news.items()}
    return update._replace(memory={**update.memory, **kept})
