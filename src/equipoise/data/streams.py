"""In which order a model meets the images of one domain or of several."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.options import one_of

Order = Literal["shuffled", "sorted", "mixed", "sequence", "recorded"]
"""One domain in random order; by class; all domains in one random order; one domain after the other; or one
domain in the order of the data set."""


def stream_order(labels: Sequence[Tensor], order: Order, seed: int) -> Tensor:
    """The rows, in the order of the stream, into the domains joined one after another.

    Args:
        labels: of each domain.
        order: "shuffled" takes one domain; "sorted" joins all and meets class after class, the lowest first,
            in random order within a class.
        seed: of a generator of its own on the CPU, so that device and global state change nothing.
    """
    one_of("order", order, get_args(Order))
    alone = order in ("shuffled", "recorded")
    if not labels or (alone and len(labels) > 1):
        raise OptionError(
            f"expected {'one' if alone else 'at least one'} domain for the order {order!r}, "
            f'got {len(labels)}; "mixed" and "sequence" take several'
        )
    generator = torch.Generator().manual_seed(seed)
    if order == "sequence":
        rows, start = [], 0
        for domain in labels:
            rows.append(start + torch.randperm(len(domain), generator=generator))
            start += len(domain)
        return torch.cat(rows)
    if order == "recorded":
        return torch.arange(len(labels[0]))
    joined = torch.cat([domain.cpu() for domain in labels])
    shuffled = torch.randperm(len(joined), generator=generator)
    return shuffled[joined[shuffled].argsort(stable=True)] if order == "sorted" else shuffled
