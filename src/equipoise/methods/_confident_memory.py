"""SoTTA's memory: high-confidence uniform sampling, for all the samples of a batch at once."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core.method import Memory
from equipoise.methods._stored_samples import SLOT_CLASSES, placed, placed_samples
from equipoise.network.verdict import reads_are_free

Array: TypeAlias = npt.NDArray[Any]


def offer(
    stored: Memory, samples: Mapping[str, Tensor], classes: Tensor, offered: Tensor, draws: Tensor
) -> dict[str, Tensor]:
    """The memory after the samples of a batch that are `offered` were offered to it, in order.

    A memory is "classes", the class in each slot or -1, and "samples.*", a row for each slot.
    """
    memory = stored[SLOT_CLASSES]
    held, taker = taken_slots(memory, *(t.to(memory.device) for t in (classes, offered, draws)))
    return {SLOT_CLASSES: held, **placed_samples(stored, samples, taker)}


def taken_slots(memory: Tensor, classes: Tensor, offered: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """The class in each slot afterwards, and the sample that each slot was taken by, -1 where by none.

    Free slots are taken first, from the front; then those of `replaced_slots`. `draws` has a row for
    every sample, offered or not: a number for each class, then one for each slot.
    """
    if not len(classes):
        return memory, torch.full_like(memory, -1)
    # The rounds on the CPU are the faster there, but how many they are depends on the data.
    choose = takers_on_cpu if reads_are_free(memory.device) else takers_by_tensors
    taker = choose(memory, classes, offered, draws)
    return placed(memory, classes, taker), taker


def takers_on_cpu(memory: Tensor, classes: Tensor, offered: Tensor, draws: Tensor) -> Tensor:
    """The takers that `taken_slots` returns, by the rounds of `replaced_slots`."""
    held, rows = memory.numpy().copy(), np.flatnonzero(offered.numpy())
    came = classes.numpy()[rows]
    free = np.flatnonzero(held < 0)[: len(rows)]
    room = len(free)
    held[free] = came[:room]
    numbers = draws.numpy()[rows[room:]]
    replaced = replaced_slots(held, came[room:], numbers, numbers.shape[1] - len(held))
    taker = np.full(len(held), -1, dtype=np.int64)
    taker[np.concatenate([free, replaced])] = rows  # of the samples that took the same slot, the last stays
    return torch.from_numpy(taker)


def replaced_slots(memory: Array, classes: Array, draws: Array, num_classes: int) -> Array:
    """Which slot of a full memory each sample takes, in order; `memory` has the class in each slot.

    Let L be the classes with the most slots. A sample whose class is in L takes a random slot of its own
    class, another one a random slot of a random class in L (Gong et al., NeurIPS 2023). `draws` has a row of
    uniform numbers for each sample, one for each class and one for each slot: "a random one of" is the one
    with the smallest number.

    A sample whose class is in L leaves the classes in the slots, and so all later choices, as they are. So
    the choices of all samples up to and with the next whose class is not in L are made at once: a round for
    each of those, none for the others.
    """
    memory, slots = memory.copy(), np.empty(len(classes), dtype=np.int64)
    start = 0
    while start < len(classes):
        counts = np.bincount(memory, minlength=num_classes)
        largest = counts == counts.max()
        others = np.flatnonzero(~largest[classes[start:]])
        run = slice(start, start + int(others[0]) + 1 if len(others) else len(classes))
        victims = classes[run].copy()
        if len(others):
            victims[-1] = np.where(largest, draws[run.stop - 1, :num_classes], 2.0).argmin()
        own = memory == victims[:, None]
        slots[run] = np.where(own, draws[run, num_classes:], 2.0).argmin(1)
        memory[slots[run]] = classes[run]
        start = run.stop
    return slots


def takers_by_tensors(memory: Tensor, classes: Tensor, offered: Tensor, draws: Tensor) -> Tensor:
    """The takers that `taken_slots` returns, by tensors alone: shapes are fixed and the host never waits.

    First the class that each sample takes a slot from (free slots: -1), then the slot, of those of that class
    the one of the smallest rank. In a CUDA graph either is two kernels for each sample.
    """
    slots, samples = _indices(memory), _indices(classes)
    free = offered & (offered.cumsum(0) <= (memory < 0).sum())
    losers = _losing_classes(memory, classes, offered, free, draws[:, : -len(slots)])
    losers = losers.masked_fill(free, -1)
    ranks = torch.where(free[:, None], slots, _ranks(draws[:, -len(slots) :]))
    # A slot goes from the class that loses it to that of the sample: which later samples may take it changes.
    moved = (losers == classes[:, None]).long() - (losers == losers[:, None]).long()
    unit = len(slots)
    keys = (memory == losers[:, None]) * unit - ranks
    chosen = _chosen_in_order(keys, moved * offered[:, None] * unit)
    took = (chosen == slots[:, None]) & offered
    return torch.where(took, samples, -1).amax(1)  # of the samples that took the same slot, the last stays


def _losing_classes(memory: Tensor, classes: Tensor, offered: Tensor, free: Tensor, draws: Tensor) -> Tensor:
    """The class that each offered sample takes a slot from, if it finds none that is free.

    It is the one with the largest count · (C + 1) − rank: of the largest classes the sample's own, whose rank
    is -1, or else that with the smallest draw. What the samples before it brought to the counts is known from
    the start; the slots they took are subtracted as they choose.
    """
    names = torch.arange(draws.shape[1], device=memory.device)
    own = classes[:, None] == names
    brought = (own & offered[:, None]).long()
    counts = (memory[:, None] == names).sum(0) + brought.cumsum(0) - brought
    unit = len(names) + 1
    loss = (offered & ~free) * -unit
    keys = counts * unit - _ranks(draws).masked_fill(own, -1)
    return _chosen_in_order(keys, loss[:, None].expand(-1, len(classes)))


def _chosen_in_order(keys: Tensor, changes: Tensor) -> Tensor:
    """For each row, one after another, the column of its largest key; each choice changes its column.

    Row n of `changes` is added to the column that row n chooses. `keys` are written into.
    """
    chosen = torch.empty(len(keys), dtype=torch.long, device=keys.device)
    for row, column, change in zip(keys.split(1), chosen.split(1), changes, strict=True):
        torch.argmax(row, 1, out=column)
        keys.index_add_(1, column, change[:, None])
    return chosen


def _ranks(draws: Tensor) -> Tensor:
    """The rank of each number in its row; of equal ones the first is the smaller, as for `argmin`."""
    return draws.argsort(dim=1, stable=True).argsort(1)


def _indices(tensor: Tensor) -> Tensor:
    return torch.arange(len(tensor), device=tensor.device)


def default_confidence(classes: int) -> float:
    """The authors' .99 for 10 classes, .66 for 100, .33 for 1,000; linear in log C between, level outside."""
    return min(0.99, max(0.33, 0.33 * (4 - math.log10(classes))))
