"""SoTTA's memory: high-confidence uniform sampling, for all the samples of a batch at once."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SAMPLES = "samples."
_AHEAD = 16  # how many choices are guessed at once; more guesses are wrong than it saves
Array: TypeAlias = npt.NDArray[Any]


def offer(
    kept: Mapping[str, Tensor], samples: Mapping[str, Tensor], classes: Tensor, num_classes: int
) -> dict[str, Tensor]:
    """The memory after it was offered samples of some classes, in order.

    A memory is "classes", the class in each slot or -1, "samples.*", a row for each slot, and "random", the
    state of the generator that its choices are drawn from. Free slots are taken first, from the front.
    """
    memory, came = kept["classes"].cpu().numpy().copy(), classes.cpu().numpy()
    filled = int((memory >= 0).sum())
    room = min(len(memory) - filled, len(came))
    slots = np.arange(filled, filled + room)
    memory[slots] = came[:room]
    generator = torch.Generator()
    generator.set_state(kept["random"].cpu())
    if room < len(came):
        draws = torch.rand(len(came) - room, num_classes + len(memory), generator=generator).numpy()
        slots = np.concatenate([slots, replaced_slots(memory, came[room:], draws, num_classes)])
    taker = np.full(len(memory), -1)
    taker[slots] = np.arange(len(slots))  # of the samples that took the same slot, the last stays
    taken = torch.from_numpy(taker >= 0)
    last = torch.from_numpy(taker)[taken]
    memory[slots] = came
    news = {"classes": torch.from_numpy(memory), "random": generator.get_state()}
    for name, rows in samples.items():
        old = kept.get(SAMPLES + name)
        store = rows.new_zeros(len(memory), *rows.shape[1:]) if old is None else old.clone()
        store[taken.to(store.device)] = rows[last.to(rows.device)]
        news[SAMPLES + name] = store
    return news


def replaced_slots(memory: Array, classes: Array, draws: Array, num_classes: int) -> Array:
    """Which slot of a full memory each sample takes, in order; `memory` has the class in each slot.

    Let L be the classes with the most slots. A sample whose class is in L takes a random slot of its own
    class, another one a random slot of a random class in L (Gong et al., NeurIPS 2023). `draws` has a row of
    uniform numbers for each sample, one for each class and one for each slot: "a random one of" is the one
    with the smallest number.

    Each choice depends on those before it. So the next few are guessed, and then made again at once, each on
    the memory that the guesses before it would leave. All up to the first wrong guess were made on the memory
    as it was, that one's correction too: they are settled, and the others are the next guesses.
    """
    memory, settled = memory.copy(), np.zeros(0, dtype=np.int64)
    guesses = settled
    while len(settled) < len(classes):
        ahead = slice(len(settled), len(settled) + _AHEAD)
        came = classes[ahead]
        guesses = np.concatenate([guesses, np.full(len(came) - len(guesses), -1)])
        again = _choices(memory, came, draws[ahead], num_classes, guesses)
        wrong = np.flatnonzero(again != guesses)
        right = int(wrong[0]) + 1 if len(wrong) else len(came)
        memory[again[:right]] = came[:right]
        settled, guesses = np.concatenate([settled, again[:right]]), again[right:]
    return settled


def _choices(memory: Array, classes: Array, draws: Array, num_classes: int, guesses: Array) -> Array:
    """The slot each sample would take if those before it took the guessed ones (-1: none)."""
    rows, slots = len(classes), len(memory)
    order = np.arange(rows)
    # The sample that was the last to take each slot before each step; 0 for none, so they count from 1.
    takers = np.zeros((rows + 1, slots + 1), dtype=np.int64)
    takers[order + 1, guesses] = order + 1
    latest = np.maximum.accumulate(takers)[:rows, :slots]
    held = np.where(latest > 0, classes[latest - 1], memory)
    cells = (held + num_classes * order[:, None]).ravel()
    counts = np.bincount(cells, minlength=rows * num_classes).reshape(rows, num_classes)
    largest = counts == counts.max(1, keepdims=True)
    drawn = np.where(largest, draws[:, :num_classes], 2.0).argmin(1)
    victims = np.where(largest[order, classes], classes, drawn)
    chosen: Array = np.where(held == victims[:, None], draws[:, num_classes:], 2.0).argmin(1)
    return chosen
