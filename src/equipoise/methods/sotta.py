"""SoTTA: learn from a balanced memory of confident samples, towards flat minima."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import NO_TENSORS, Context, Memory, Update
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName, sharpness_aware_slope
from equipoise.core.student import Student
from equipoise.core.verdict import reads_are_free
from equipoise.functional import at_least_single
from equipoise.methods.parts import sample_memory as slots
from equipoise.network.batch import Batch
from equipoise.options import choice, option
from equipoise.registry import register

Array: TypeAlias = npt.NDArray[Any]


@register
@dataclass(frozen=True, kw_only=True)
class Sotta(slots.StoringMethod):
    """Screening-out test-time adaptation (Gong et al., NeurIPS 2023): robust to samples of no class at all.

    A batch is answered in eval mode. A sample whose confidence is at least C₀ enters a memory under the class
    predicted; if that is full, in the place of a random sample of the classes that have most
    (`replaced_slots`). After every `every` samples the memory is learned from:

        L(θ) = mean over the memory of −Σ_c p_c log(p_c + 1e-6),
        θ ← optimiser step with the gradient of L at θ + rho · g / ‖g‖,  g = ∂L/∂θ  (sharpness-aware),

    normalised by the memory's statistics. A forward a batch; two and two backwards of it at every update.

    Args:
        capacity: samples in the memory.
        confidence: C₀; by default `default_confidence`.
        rho: the length of the sharpness-aware step uphill.
        every: samples between updates.
        seed: of the memory's random choices.

    Deviations: the authors leave out layers by parts of their names, and decay weights on CIFAR; here every
    normalisation layer adapts, and nothing decays. They neither answer nor use the samples after the last
    full window. An update that goes wrong is undone and the memory emptied.
    """

    name = "sotta"

    capacity: int = option(64, low=1, high=slots.MOST)
    confidence: float | None = option(None, low=0, high=1)
    rho: float = option(0.05, low=0)
    every: int = option(64, low=1, high=2**63 - 1)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    norm_momentum: float = option(0.2, low=0, high=1)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, and a free memory."""
        return {**super().initial(student, source), **slots.free(self.capacity, student.device)}

    def step(self, context: Context) -> Update:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        student, batch = context.student, context.batch
        samples, logits = slots.storable(context.memory, batch, student.gather), student.frozen(batch)
        certainty, classes = at_least_single(logits).softmax(1).max(1)
        width = logits.shape[1]
        sure = certainty >= (default_confidence(width) if self.confidence is None else self.confidence)
        draws = student.gather(context.rand(width + self.capacity), "draws")

        def join(memory: Memory, inside: Tensor) -> dict[str, Tensor]:
            return offer(memory, samples, classes, sure & inside, draws)

        return slots.memory_step(context, logits, self.every, join, self._update)

    def _update(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Learn from the memory, towards a flat minimum."""
        student = context.student

        def loss_at() -> Tensor:
            logits = student.on_batch_statistics(stored, self.norm_momentum)
            return self.loss(logits, NO_TENSORS, context).value

        slope_of = partial(sharpness_aware_slope, loss_at, student.learned, self.rho)
        return slots.learn_from_memory(context, stored, logits, slope_of, self.descent, self.steps)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The mean entropy of the memory."""
        p = at_least_single(logits).softmax(1)
        return Loss(-(p * (p + 1e-6).log()).sum(1).mean(), used=len(logits))


def offer(
    stored: Memory, samples: Mapping[str, Tensor], classes: Tensor, offered: Tensor, draws: Tensor
) -> dict[str, Tensor]:
    """The memory after the samples of a batch that are `offered` were offered to it, in order.

    A memory is "classes", the class in each slot or -1, and "samples.*", a row for each slot.
    """
    memory = stored[slots.SLOT_CLASSES]
    held, taker = taken_slots(memory, *(t.to(memory.device) for t in (classes, offered, draws)))
    return {slots.SLOT_CLASSES: held, **slots.placed_samples(stored, samples, taker)}


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
    return slots.placed(memory, classes, taker), taker


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
    memory, taken = memory.copy(), np.empty(len(classes), dtype=np.int64)
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
        taken[run] = np.where(own, draws[run, num_classes:], 2.0).argmin(1)
        memory[taken[run]] = classes[run]
        start = run.stop
    return taken


def takers_by_tensors(memory: Tensor, classes: Tensor, offered: Tensor, draws: Tensor) -> Tensor:
    """The takers that `taken_slots` returns, by tensors alone: shapes are fixed and the host never waits.

    First the class that each sample takes a slot from (free slots: -1), then the slot, of those of that class
    the one of the smallest rank. In a CUDA graph either is two kernels for each sample.
    """
    places, samples = _indices(memory), _indices(classes)
    free = offered & (offered.cumsum(0) <= (memory < 0).sum())
    losers = _losing_classes(memory, classes, offered, free, draws[:, : -len(places)])
    losers = losers.masked_fill(free, -1)
    ranks = torch.where(free[:, None], places, _ranks(draws[:, -len(places) :]))
    # A slot goes from the class that loses it to that of the sample: which later samples may take it changes.
    moved = (losers == classes[:, None]).long() - (losers == losers[:, None]).long()
    unit = len(places)
    keys = (memory == losers[:, None]) * unit - ranks
    chosen = _chosen_in_order(keys, moved * offered[:, None] * unit)
    took = (chosen == places[:, None]) & offered
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
