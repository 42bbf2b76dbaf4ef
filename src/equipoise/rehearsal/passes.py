"""The passes of a rehearsal: which rows come under which shift, and a method's answers to them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from equipoise.adapter import Adapter
from equipoise.calibration import window
from equipoise.calibration.novelty import Novelty
from equipoise.calibration.rehearsal import countable
from equipoise.errors import RehearsalError
from equipoise.evaluation import evaluate
from equipoise.network.batch import leaves
from equipoise.rehearsal.labelled import Inputs, Labelled, mapped
from equipoise.rehearsal.shifts import NO_SHIFT, Shifts, named_errors, shifted_inputs

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


SNAPSHOT = 500
"""Samples between two snapshots of a window."""


@dataclass(frozen=True)
class RehearsalSetup:
    """A method without tempering, which takes the inputs as they are, and samples to rehearse it with.

    Attributes:
        adapter: the method.
        classes: of the model.
        labelled: the samples.
        batch_size: of the streams.
        seed: of everything random.
        novelty: of inputs, where that was measured.
    """

    adapter: Adapter
    classes: int
    labelled: Labelled
    batch_size: int
    seed: int
    novelty: Novelty | None = None


@dataclass(frozen=True)
class RehearsedStream:
    """Answers of a method to one stream.

    Attributes:
        shift: the name of the shift.
        order: of the samples (`plan_passes`).
        windows: snapshots (n, models, width) of windows of answers.
        hits: the share of right answers in each of them, (n, models).
        shifts: the shift that each of them ended with.
        whole: the window of all answers, (models, width).
        confidences: of each answer at each temperature of the grid, (N, grid).
        right: whether each answer is right, (N).
        source_right: the share of right answers of the source model, if the method compares itself with it.
        weight_distance: how far the weights that learn were from the source model's at most, at snapshots.
        logits: all answers, (models, N, C), and
        labels: their classes, of the pass that nothing shifts or orders; None of others.
    """

    shift: str
    order: str
    windows: Tensor
    hits: Tensor
    shifts: list[str]
    whole: Tensor
    confidences: Tensor
    right: Tensor
    source_right: float | None
    weight_distance: float
    logits: Tensor | None = None
    labels: Tensor | None = None


def run_streams(setup: RehearsalSetup, shifts: Shifts, progress: bool) -> list[RehearsedStream]:
    """Run the method on every pass of the plan (`plan_passes`)."""
    continual = setup.adapter.method.learns is not None
    plan = plan_passes(list(shifts), setup.labelled, _source_answers(setup), setup.seed, continual)
    finished: list[RehearsedStream] = []
    bar = tqdm(plan, desc=f"rehearsing {setup.adapter.name}", unit="stream") if progress else plan
    try:
        for own in bar:
            if isinstance(bar, tqdm):
                bar.set_postfix_str(f"{own.shift}, {own.order}")
            finished.append(_run_stream(setup, own, shifts))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f" after {len(finished)} of {len(plan)} streams") from None
    return finished


def _run_stream(setup: RehearsalSetup, own: Pass, shifts: Shifts) -> RehearsedStream:
    """One pass of the method, from a reset."""
    adapter, compares = setup.adapter, setup.adapter.method.compares
    adapter.reset()
    batches = [(name, rows) for name, part in own.parts for rows in part.split(setup.batch_size)]
    inputs = (_shifted(setup, rows, shifts[name], own.seed) for name, rows in batches)
    answered = evaluate(adapter, inputs, ask_source=compares, novelty=setup.novelty)
    models = 2 if compares else 1
    windows = torch.zeros(models, 2, window.width(setup.classes) + 1)
    whole = torch.zeros(models, windows.shape[2])
    snapshots, names, confidences, right, seen, farthest = [], [], [], [], 0, 0.0
    kept: list[tuple[Tensor, Tensor]] = []
    total = sum(len(part.rows) for part in own.parts)
    for name, rows in batches:
        with named_errors(name):
            answers = next(answered)
        asked = [each for each in (answers.logits, answers.source_logits) if each is not None]
        logits = torch.stack([each.float() for each in asked])  # models, N, C
        good = countable(logits).all(0)
        hits = (logits.argmax(2) == setup.labelled.labels[rows]) & good
        sums = window.sums(logits, good, answers.novelty)
        fresh = torch.cat([sums, hits.sum(1, keepdim=True).float()], 1)
        windows, _ = window.after(windows, fresh)
        whole = whole + fresh
        behind = logits[0][good] - logits[0][good].amax(1, keepdim=True)
        confidences.append(window.confidences(behind))
        if (own.shift, own.order) == (NO_SHIFT, "shuffled"):
            kept.append((logits[:, good], setup.labelled.labels[rows][good]))
        right.append(hits[0][good])
        seen += len(rows)
        if seen // SNAPSHOT > (seen - len(rows)) // SNAPSHOT or seen == total:
            snapshots.append(windows[:, 0])
            names.append(name)
            farthest = max(farthest, adapter.weight_distance)
    if not bool(whole[0, window.COUNT] > 0):
        raise RehearsalError(f"the shift {own.shift!r} left no sample with a finite answer")
    noted = torch.stack(snapshots).double()
    return RehearsedStream(
        own.shift,
        own.order,
        noted[..., :-1],
        noted[..., -1] / noted[..., window.COUNT].clamp(min=1e-6),
        names,
        whole[:, :-1].double(),
        torch.cat(confidences),
        torch.cat(right),
        float(whole[1, -1] / whole[1, window.COUNT]) if models == 2 else None,
        farthest,
        torch.cat([logits for logits, _ in kept], 1) if kept else None,
        torch.cat([labels for _, labels in kept]) if kept else None,
    )


def _source_answers(setup: RehearsalSetup) -> Tensor:
    """The source model's probabilities for the samples, (N, C); 0 where they are not finite."""
    device, found = setup.adapter.device, []
    for batch in setup.labelled.batches(setup.batch_size):
        there = mapped(batch.inputs, lambda t: t.to(device))
        with named_errors(NO_SHIFT):
            found.append(setup.adapter.source_logits(there).float().softmax(1).nan_to_num().cpu())
    return torch.cat(found)


def _shifted(setup: RehearsalSetup, rows: Tensor, shift: Callable[..., Any], seed: int) -> Inputs:
    """The samples of some rows on the device of the method, shifted."""
    there = mapped(setup.labelled.select(rows).inputs, lambda t: t.to(setup.adapter.device))
    return shifted_inputs(there, shift, setup.seed + seed)
