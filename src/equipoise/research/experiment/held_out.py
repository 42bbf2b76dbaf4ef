"""Split of the source images into those for training and those held out for rehearsals."""

from typing import NamedTuple

import torch
from torch import Tensor

ONE_IN = 10
"""One image in so many is held out."""


class Split(NamedTuple):
    """Rows of the source images, each in ascending order.

    Attributes:
        trained: the rows for training.
        held_out: the rows that the model is not trained on.
    """

    trained: Tensor
    held_out: Tensor


def split(labels: Tensor, seed: int) -> Split:
    """Hold one image in ten out, by class: of n images of a class n/10, rounded up or down.

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
