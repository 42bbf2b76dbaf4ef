"""Updates from a memory of samples: all or nothing, and a memory that spoils one is emptied."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from equipoise.core.gradient import OPTIMIZER
from equipoise.core.method import Context, Update
from equipoise.methods._stored_samples import emptied, full, remembered
from equipoise.network.batch import Batch
from equipoise.network.flags import Check, all_hold
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.optimizer import Optimizer, Slope


def learn_from_memory(
    context: Context,
    logits: Tensor,
    slope_of: Callable[[Batch], tuple[Tensor, Slope]],
    descent: Optimizer,
    steps: int,
) -> Update:
    """Take steps on the samples in the memory; if that goes wrong, undo them and empty the memory.

    Args:
        context: the step's, with the memory as it is now.
        logits: the answers to the batch, for the `Update`.
        slope_of: the loss of the samples in the memory, and its gradient.
        descent: the optimiser.
        steps: how many.
    """
    student, memory, old = context.student, context.memory, part(context.memory, OPTIMIZER)
    stored = remembered(memory, context.batch, whole=not context.host_looks)
    if stored is None:
        return Update(logits, idle="the memory is empty: no sample has entered it")
    guard = Check(full(memory) | context.host_looks, "the memory is not full")
    loss, state, checks = logits.new_zeros(()), old, tuple[Check, ...]((guard,))
    with student.replicated(), student.undo_unless() as settle:
        for _ in range(steps):
            loss, found = slope_of(stored)
            finite = student.finite_statistics()
            state, checks = student.descend(partial(Slope, *found), descent, state, *checks, finite)
        fine = all_hold(checks)
        settle(fine)
    news = prefixed(OPTIMIZER, {n: torch.where(fine, new, old[n]) for n, new in state.items()})
    news |= emptied(memory, guard.holds & ~fine)
    fatal = [c._replace(otherwise=f"{c.otherwise}: the memory was emptied") for c in checks[1:]]
    reported = tuple(check._replace(undoes=False, alarms=True) for check in (guard, *fatal))
    return Update(logits, news, used=stored.rows, loss=loss.detach(), checks=reported)
