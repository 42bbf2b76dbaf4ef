"""The orders in which the samples of a rehearsal come: which rows, under which shift, one after another."""

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.shifts import NO_SHIFT
from equipoise.network.batch import leaves
from equipoise.rehearsal.labelled import Labelled

BURST = 80
"""Samples of a burst, which are of two classes."""

IN_ROW = 300
"""Samples of each shift in the pass over all of them without a reset."""

DRAWS = 4
"""Passes of each kind of uneven draw without a shift."""

ALL_SHIFTS, CONTINUAL = "all, one after another", "continual"


class ShiftedRows(NamedTuple):
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
    parts: tuple[ShiftedRows, ...]
    seed: int


def plan_passes(
    shifts: list[str], labelled: Labelled, answers: Tensor, seed: int, continual: bool
) -> list[Pass]:
    """Every shift in random order, and every second one sorted by class.

    Without a shift the rows also come in bursts of two classes, drawn unevenly by class, by a value of the
    inputs, and by the probability of a class in `answers` (N, C), the model's own, and sorted by the latter
    two: classes and groups that come in runs, or in other shares, are no loss of accuracy by themselves, but
    may harm an adapter. With `continual`, for a method that learns weights, the last pass is over all shifts
    without a reset between them.
    """
    labels, every = labelled.labels, torch.arange(len(labelled))
    draw = torch.Generator().manual_seed(seed)

    def value() -> Tensor:
        return _values(labelled, draw)

    def answer() -> Tensor:
        return answers[:, int(torch.randint(answers.shape[1], (), generator=draw))]

    passes = [Pass(name, "shuffled", (ShiftedRows(name, every),), 0) for name in shifts]
    by_class, runs = labels.argsort(stable=True), _bursts(labels, draw)
    passes += [Pass(name, "sorted", (ShiftedRows(name, by_class),), 1) for name in shifts[::2]]
    passes.append(Pass(NO_SHIFT, "bursts", (ShiftedRows(NO_SHIFT, runs),), 2))
    weighted = [(f"classes drawn {n + 1}", _by_class(labels, draw)) for n in range(DRAWS)]
    weighted += [(f"values drawn {n + 1}", _by_rank(value(), draw)) for n in range(DRAWS)]
    weighted += [(f"answers drawn {n + 1}", _by_rank(answer(), draw)) for n in range(DRAWS)]
    rows = {name: torch.multinomial(w, len(w), replacement=True, generator=draw) for name, w in weighted}
    rows |= {"sorted by a value": value().argsort(stable=True)}
    rows |= {"sorted by an answer": answer().argsort(stable=True)}
    passes += [Pass(NO_SHIFT, name, (ShiftedRows(NO_SHIFT, own),), 3) for name, own in rows.items()]
    if not continual:
        return passes
    picked = [every[torch.randperm(len(every), generator=draw)[:IN_ROW]] for _ in shifts]
    parts = tuple(ShiftedRows(name, own) for name, own in zip(shifts, picked, strict=True))
    return [*passes, Pass(ALL_SHIFTS, CONTINUAL, parts, 4)]


def count_samples(shifts: int, samples: int, continual: bool) -> int:
    """The number of samples in all passes of a rehearsal, for so many shifts with the one of nothing."""
    whole = shifts + (shifts + 1) // 2 + 1 + 3 * DRAWS + 2
    return samples * whole + (min(samples, IN_ROW) * shifts if continual else 0)


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


def _by_class(labels: Tensor, draw: torch.Generator) -> Tensor:
    """Weights of rows for which the shares of the classes are skewed, some of them nearly 0."""
    classes = labels.unique()
    shares = torch.rand(len(classes), generator=draw).log().neg().pow(3) + 1e-2  # an exponential, cubed
    weights = torch.zeros(len(labels))
    for label, share in zip(classes, shares, strict=True):
        own = labels == label
        weights[own] = share / own.sum()
    return weights


def _by_rank(values: Tensor, draw: torch.Generator) -> Tensor:
    """Weights of rows that are e⁴ times as large at one end of the values as at the other."""
    rank = values.argsort(stable=True).argsort(stable=True) / len(values)
    side = 1.0 if torch.rand((), generator=draw) < 0.5 else -1.0
    return (4 * side * rank).exp()


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
