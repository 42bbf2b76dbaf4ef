"""RoTTA's memory: category-balanced sampling by timeliness and uncertainty."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.core.method import Context, Memory
from equipoise.functional import at_least_single, nats
from equipoise.methods._stored_samples import SLOT_CLASSES, free, placed_samples, storable
from equipoise.network.verdict import host_knows

_AGES, _NATS = "ages", "nats"


class Offer(NamedTuple):
    """The samples of a batch that a memory is offered.

    Attributes:
        samples: their tensors by name, as they came.
        classes: the classes predicted.
        nats: the entropies.
        good: whether the logits are finite.
        num_classes: the number of classes.
    """

    samples: dict[str, Tensor]
    classes: Tensor
    nats: Tensor
    good: Tensor
    num_classes: int


def free_categories(capacity: int, like: Tensor) -> dict[str, Tensor]:
    """A memory without samples: the class, the age and the entropy in each slot, as `like`."""
    levels = like.new_zeros(capacity)
    return {**free(capacity, like.device), _AGES: levels.long(), _NATS: levels}


def offering(context: Context, logits: Tensor) -> Callable[[Memory, Tensor], dict[str, Tensor]]:
    """A function that offers the samples of a batch, of all processes, to a memory (`join_memory`)."""
    samples = storable(context.memory, context.batch, context.student.gather)
    good = logits.isfinite().all(1)
    wide = torch.where(good.unsqueeze(1), at_least_single(logits.detach()), 0.0)
    offer = Offer(samples, wide.argmax(1), nats(wide), good, logits.shape[1])
    return lambda memory, inside: join_memory(memory, offer, inside)


def join_memory(stored: Memory, offer: Offer, inside: Tensor) -> dict[str, Tensor]:
    """The memory after the good samples of an offer that are `inside` were offered to it, one by one.

    A sample of class k, entropy u and age 0 has the score 1 / (1 + exp(−age / N)) + u / ln C, N the number of
    slots. While its class has fewer than N / C samples it takes a free slot, or, without any, that of the
    highest score among the classes with most samples; else that of the highest score in its own class.
    It takes the slot of another sample only if that has a higher score than itself. Then all samples are one
    older (Yuan et al., CVPR 2023). All on the device, some twenty kernels for each sample.

    With more classes than slots N / C is below 1, and a class without samples has fewer: each class has at
    most one sample, and one of a new class takes the slot of the highest score of all.
    """
    slots = _Slots(stored[SLOT_CLASSES], stored[_AGES], stored[_NATS])
    taker = torch.full_like(slots.classes, -1)
    places = torch.arange(len(taker), device=taker.device)
    for row, enters in enumerate((offer.good & inside).unbind()):
        if host_knows(enters) is False:
            continue
        came, level = offer.classes[row], offer.nats[row].to(slots.nats)
        slot, finds = slots.slot_for(came, level, offer.num_classes)
        taken = (places == slot) & finds & enters
        classes = torch.where(taken, came, slots.classes)
        ages = torch.where(taken, 0, slots.ages) + enters * (classes >= 0)
        slots = _Slots(classes, ages, torch.where(taken, level, slots.nats))
        taker = torch.where(taken, row, taker)
    news = {SLOT_CLASSES: slots.classes, _AGES: slots.ages, _NATS: slots.nats}
    return {**news, **placed_samples(stored, offer.samples, taker)}


def timeliness(stored: Memory, *, whole: bool) -> Tensor:
    """The weight 1 / (1 + exp(age / N)) of each sample in the memory; `whole`: of every slot, free or not."""
    weights = torch.sigmoid(-stored[_AGES] / len(stored[_AGES]))
    return weights if whole else weights[stored[SLOT_CLASSES] >= 0]


class _Slots(NamedTuple):
    """The class (-1: free), the age and the entropy in each slot."""

    classes: Tensor
    ages: Tensor
    nats: Tensor

    def slot_for(self, came: Tensor, level: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """The slot for a sample of a class and an entropy, and whether it may take it."""
        filled, own = self.classes >= 0, self.classes == came
        most = math.log(max(num_classes, 2))  # a single class has no entropy
        scores = torch.sigmoid(self.ages / len(self.ages)) + self.nats / most
        score = 0.5 + level / most
        sizes = ((self.classes == self.classes.unsqueeze(1)) & filled).sum(1)
        below = own.sum() < len(self.classes) / num_classes
        losers = torch.where(below, filled & (sizes == sizes.amax()), own)
        highest, slot = torch.where(losers, scores, -math.inf).max(0)
        room = below & ~filled.all()
        return torch.where(room, (~filled).long().argmax(), slot), room | (highest > score)
