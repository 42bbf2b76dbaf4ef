"""Streams of made-up shifts, and records of a method's answers to them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from equipoise.adapter import Adapter
from equipoise.calibration import window
from equipoise.calibration.novelty import Novelty
from equipoise.calibration.rehearsal import countable
from equipoise.calibration.shifts import NO_SHIFT
from equipoise.errors import RehearsalError
from equipoise.evaluation import evaluate
from equipoise.network.batch import leaves
from equipoise.rehearsal.labelled import Inputs, Labelled, mapped, tensors_of
from equipoise.rehearsal.orders import Pass, plan_passes

Shifts: TypeAlias = Mapping[str, Callable[[Any, torch.Generator], Any]]
"""Names to functions (inputs, generator) → inputs."""

_KINDS = {Tensor: "a tensor", tuple: "a tuple of tensors", dict: "a dict of tensors"}

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
        order: of the samples (`orders.plan_passes`).
        windows: snapshots (n, models, width) of windows of answers.
        hits: the share of right answers in each of them, (n, models).
        shifts: the shift that each of them ended with.
        whole: the window of all answers, (models, width).
        confidences: of each answer at each temperature of the grid, (N, grid).
        right: whether each answer is right, (N).
        source_right: the share of right answers of the source model, if the method compares itself with it.
        weight_distance: how far the weights that learn were from the source model's at most, at snapshots.
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


def run_streams(setup: RehearsalSetup, shifts: Shifts, progress: bool) -> list[RehearsedStream]:
    """Run the method on every pass of the plan (`orders.plan_passes`)."""
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
        windows, whole = window.after(windows, fresh), whole + fresh
        behind = logits[0][good] - logits[0][good].amax(1, keepdim=True)
        confidences.append(window.confidences(behind))
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
    )


def _source_answers(setup: RehearsalSetup) -> Tensor:
    """The source model's probabilities for the samples, (N, C); 0 where they are not finite."""
    device, found = setup.adapter.device, []
    for batch in batches_of(setup.labelled, setup.batch_size):
        there = mapped(batch.inputs, lambda t: t.to(device))
        with named_errors(NO_SHIFT):
            found.append(setup.adapter.source_logits(there).float().softmax(1).nan_to_num().cpu())
    return torch.cat(found)


def _shifted(setup: RehearsalSetup, rows: Tensor, shift: Callable[..., Any], seed: int) -> Inputs:
    """The samples of some rows on the device of the method, shifted."""
    there = mapped(setup.labelled.select(rows).inputs, lambda t: t.to(setup.adapter.device))
    return shifted_inputs(there, shift, setup.seed + seed)


def shifted_inputs(inputs: Inputs, shift: Callable[..., Any], seed: int) -> Inputs:
    """Inputs after a shift, with the same random numbers for each batch, so that a stream is one domain."""
    shapes = [(name, t.shape, t.dtype) for name, t in leaves(inputs).items()]
    changed = shift(inputs, torch.Generator().manual_seed(seed))
    kind = Tensor if isinstance(inputs, Tensor) else type(inputs)
    if not isinstance(changed, kind) or not all(isinstance(t, Tensor) for t in tensors_of(changed)):
        raise RehearsalError(f"expected inputs as they came, {_KINDS[kind]}, got {type(changed).__name__}")
    if [(name, t.shape, t.dtype) for name, t in leaves(changed).items()] != shapes:
        raise RehearsalError(f"expected inputs of the shapes and types {shapes} again, got others")
    first, *others = tensors_of(changed)
    fine = [first.isfinite().all(), *((t < torch.inf).all() for t in others if t.is_floating_point())]
    if not all(bool(flag) for flag in fine):
        raise RehearsalError("expected finite inputs, got some that are NaN or infinite")
    return changed


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Raise errors of a shift, or of the model on it, with the name of the shift."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # no fault of the shift or the model: smaller batches may help
    except Exception as error:
        raise RehearsalError(f"the shift {name!r} failed: {type(error).__name__}: {error}") from error


def batches_of(labelled: Labelled, size: int, rows: Tensor | None = None) -> Iterator[Labelled]:
    """The samples in batches, in the order of these rows, or as they are."""
    order = torch.arange(len(labelled)) if rows is None else rows
    for chosen in order.split(size):
        yield labelled.select(chosen)
