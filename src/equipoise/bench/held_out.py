"""Which source images a model is trained on, and which are kept aside to rehearse with."""

from typing import NamedTuple

import torch
from torch import Tensor

ONE_IN = 10
"""Of how many source images one is kept aside."""


class Split(NamedTuple):
    """Rows of the source images, each in ascending order.

    Attributes:
        trained: those that a model is trained on.
        held_out: those that it never sees.
    """

    trained: Tensor
    held_out: Tensor


def split(labels: Tensor, seed: int) -> Split:
    """Keep one image in ten aside, by class: of n images of a class n/10, rounded up or down.

    The images are shuffled, sorted by class, and every tenth of them is taken, from a random one of the first
    ten on, so that the number in all is right however small the classes are. A class of one image keeps it
    for training. The seed alone decides.
    """
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(len(labels), generator=draw)
    by_class = mixed[labels[mixed].argsort(stable=True)]
    taken = by_class[int(torch.randint(ONE_IN, (), generator=draw)) :: ONE_IN]
    aside = torch.zeros(len(labels), dtype=torch.bool)
    if len(taken):
        aside[taken] = labels.bincount()[labels[taken]] > 1
    rows = torch.arange(len(labels))
    return Split(rows[~aside], rows[aside])
