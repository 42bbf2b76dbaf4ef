"""SoTTA's memory: high-confidence uniform sampling, for all the samples of a batch at once."""

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLES = "samples."


def replaced_slots(memory: Tensor, classes: Tensor, draws: Tensor, num_classes: int) -> Tensor:
    """Which slot of a full memory each sample takes, in order; `memory` has the class in each slot.

    Let L be the classes with the most slots. A sample whose class is in L takes a random slot of its own
    class, another one a random slot of a random class in L (Gong et al., NeurIPS 2023). `draws` has a row of
    uniform numbers for each sample, one for each class and one for each slot: "a random one of" is the one
    with the smallest number.

    Each choice depends on those before it. All are guessed and then made again at once, each on the memory
    that the guesses before it would leave, until nothing changes: the first wrong guess is right after a
    round, so that this ends, and where it ends every choice was made on the memory as it was.
    """
    rows, slots = len(classes), len(memory)
    order = torch.arange(rows)
    chosen = torch.full((rows,), -1)
    while True:
        # The sample that was the last to take each slot before each step; 0 for none, so they count from 1.
        taken = torch.zeros(rows + 1, slots + 1, dtype=torch.long)
        taken[order + 1, chosen] = order + 1
        latest = taken.cummax(0).values[:rows, :slots]
        held = torch.where(latest > 0, classes[latest - 1], memory)
        counts = torch.zeros(rows, num_classes).scatter_add_(1, held, torch.ones(rows, slots))
        largest = counts == counts.amax(1, keepdim=True)
        drawn = torch.where(largest, draws[:, :num_classes], 2.0).argmin(1)
        victim = torch.where(largest[order, classes], classes, drawn)
        again = torch.where(held == victim.unsqueeze(1), draws[:, num_classes:], 2.0).argmin(1)
        if torch.equal(again, chosen):
            return chosen
        chosen = again


def offer(
    kept: Mapping[str, Tensor], samples: Mapping[str, Tensor], classes: Tensor, num_classes: int
) -> dict[str, Tensor]:
    """The memory after it was offered samples of some classes, in order.

    A memory is "classes", the class in each slot or -1, "samples.*", a row for each slot, and "random", the
    state of the generator that its choices are drawn from.
    """
    memory, classes = kept["classes"].cpu(), classes.cpu()
    size, filled = len(memory), int((memory >= 0).sum())
    room = min(size - filled, len(classes))
    slots = torch.arange(filled, filled + room)
    memory = memory.index_copy(0, slots, classes[:room])
    generator = torch.Generator()
    generator.set_state(kept["random"].cpu())
    if room < len(classes):
        rest = classes[room:]
        draws = torch.rand(len(rest), num_classes + size, generator=generator)
        slots = torch.cat([slots, replaced_slots(memory, rest, draws, num_classes)])
    # Of the samples that took the same slot, the last stays.
    taker = torch.full((size,), -1).scatter_reduce(0, slots, torch.arange(len(slots)), "amax")
    taken = taker >= 0
    news = {"classes": memory, "random": generator.get_state()}
    news["classes"][taken] = classes[taker[taken]]
    for name, rows in samples.items():
        old = kept.get(SAMPLES + name)
        store = rows.new_zeros(size, *rows.shape[1:]) if old is None else old.clone()
        store[taken.to(store.device)] = rows[taker[taken].to(rows.device)]
        news[SAMPLES + name] = store
    return news
