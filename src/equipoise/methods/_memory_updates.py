"""Updates from a memory of samples: all or nothing, and a memory that spoils one is emptied."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from equipoise.core.gradient import OPTIMIZER
from equipoise.core.method import Context, Memory, Update
from equipoise.methods._stored_samples import emptied, full, remembered, windows
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.optimizer import Optimizer, Slope
from equipoise.network.verdict import Check, all_hold


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
