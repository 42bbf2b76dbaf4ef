"""The orders in which the samples of a rehearsal come: which rows, under which shift, one after another."""

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.shifts import NO_SHIFT
from equipoise.network.nested import leaves
from equipoise.rehearsing.labelled import Labelled

BURST = 80
"""Samples of a burst, which are of two classes."""

IN_ROW = 300
"""Samples of each shift in the pass over all of them without a reset."""

DRAWS = 3
"""Passes without a shift over rows that are drawn unevenly by class, and by a value of the inputs."""

ALL_SHIFTS, CONTINUAL = "all, one after another", "continual"


class Part(NamedTuple):
    """Rows of the samples, in order, under one shift."""

    shift: str
    rows: Tensor


class Pass(NamedTuple):
    """A pass of the method from a reset.

    Attributes:
        shift: the name of its shift.
        order: of its rows.
        parts: what comes.
        seed: added to that of the rehearsal, so that a shift draws other numbers in every order.
    """

    shift: str
    order: str
    parts: tuple[Part, ...]
    seed: int


def plan_passes(shifts: list[str], labelled: Labelled, seed: int) -> list[Pass]:
    """Every shift in random order; every fourth sorted by class, and every fourth in bursts of two classes.

    Without a shift the rows also come sorted by a value of the inputs, and drawn unevenly by class and by
    such a value: classes and groups that come in runs, or in other shares, are no loss of accuracy by
    themselves. The last pass is over all shifts without a reset between them.
    """
    labels, every = labelled.labels, torch.arange(len(labelled))
    draw = torch.Generator().manual_seed(seed)
    passes = [Pass(name, "shuffled", (Part(name, every),), 0) for name in shifts]
    by_class = labels.argsort(stable=True)
    passes += [Pass(name, "sorted", (Part(name, by_class),), 1) for name in shifts[::4]]
    runs = _bursts(labels, draw)
    passes += [Pass(name, "bursts", (Part(name, runs),), 2) for name in (shifts[0], *shifts[2::4])]
    made: dict[str, Tensor] = {}
    for number in range(1, DRAWS + 1):
        made[f"classes drawn {number}"] = _drawn_by_class(labels, draw)
        made[f"values drawn {number}"] = _drawn_by_value(_values(labelled, draw), draw)
    made["sorted by a value"] = _values(labelled, draw).argsort(stable=True)
    passes += [Pass(NO_SHIFT, order, (Part(NO_SHIFT, rows),), 3) for order, rows in made.items()]
    some = [every[torch.randperm(len(every), generator=draw)[:IN_ROW]] for _ in shifts]
    parts = tuple(Part(name, rows) for name, rows in zip(shifts, some, strict=True))
    return [*passes, Pass(ALL_SHIFTS, CONTINUAL, parts, 4)]


def count_samples(shifts: int, samples: int) -> int:
    """How many samples the passes of a rehearsal have in all."""
    orders = shifts + len(range(0, shifts, 4)) + 1 + len(range(2, shifts, 4)) + 2 * DRAWS + 1
    return samples * orders + min(samples, IN_ROW) * shifts


def _bursts(labels: Tensor, draw: torch.Generator) -> Tensor:
    """All rows, in bursts of two classes that have any left."""
    left = {int(label): (labels == label).nonzero().flatten() for label in labels.unique()}
    left = {label: rows[torch.randperm(len(rows), generator=draw)] for label, rows in left.items()}
    found = []
    while left:
        order = torch.randperm(len(left), generator=draw)[:2].tolist()
        names = [list(left)[at] for at in order]
        burst = torch.cat([left[name][: BURST // len(names)] for name in names])
        found.append(burst[torch.randperm(len(burst), generator=draw)])
        for name in names:
            left[name] = left[name][BURST // len(names) :]
            if not len(left[name]):
                del left[name]
    return torch.cat(found)


def _drawn_by_class(labels: Tensor, draw: torch.Generator) -> Tensor:
    """As many rows, drawn with replacement; the shares of the classes are skewed, some nearly 0."""
    classes = labels.unique()
    shares = torch.rand(len(classes), generator=draw).log().neg().pow(3) + 1e-2  # an exponential, cubed
    weights = torch.zeros(len(labels))
    for label, share in zip(classes, shares, strict=True):
        own = labels == label
        weights[own] = share / own.sum()
    return torch.multinomial(weights, len(labels), replacement=True, generator=draw)


def _drawn_by_value(values: Tensor, draw: torch.Generator) -> Tensor:
    """As many rows, drawn with replacement, e⁴ times as often from one end of the values as the other."""
    rank = values.argsort(stable=True).argsort(stable=True) / len(values)
    side = 1.0 if torch.rand((), generator=draw) < 0.5 else -1.0
    return torch.multinomial((4 * side * rank).exp(), len(values), replacement=True, generator=draw)


def _values(labelled: Labelled, draw: torch.Generator) -> Tensor:
    """A value of each sample: a random column of a table, the mean of anything else."""
    tensors = [tensor for tensor in leaves(labelled.inputs).values() if tensor.dtype != torch.bool]
    tensors = tensors or [tensor.float() for tensor in leaves(labelled.inputs).values()]
    # The mask of texts of one length says nothing about them.
    tensors = [tensor for tensor in tensors if bool((tensor != tensor[:1]).any())] or tensors
    chosen = tensors[int(torch.randint(len(tensors), (), generator=draw))]
    if chosen.ndim == 2:
        order = torch.randperm(chosen.shape[1], generator=draw).tolist()
        varied = [at for at in order if bool((chosen[:, at] != chosen[0, at]).any())]
        column: Tensor = chosen[:, varied[0] if varied else 0]
        return column.cpu()
    return torch.stack([row.float().mean() for row in chosen]).cpu()
