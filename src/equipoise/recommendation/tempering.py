"""Answers of a trial, divided by the temperature of a rehearsal as they would be in the stream."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.calibration.novelty import Novelty
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.factory import create, make_method
from equipoise.network.batch import leaves
from equipoise.recommendation.candidates import Candidate
from equipoise.recommendation.trial import Setting, Trial
from equipoise.rehearsal.labelled import Inputs
from equipoise.rehearsal.passes import count_samples
from equipoise.rehearsal.rehearse import as_it_is, rehearse
from equipoise.rehearsal.shifts import FEWEST_SHIFTS, NO_SHIFT, ColumnKinds, Shifts, chosen_shifts

MOST_SHIFTS = 16
"""Shifts of a rehearsal; more are hardly better."""


def divided_shifts(
    shifts: int | Shifts | None, inputs: Inputs, columns: ColumnKinds | None
) -> tuple[Shifts, Shifts]:
    """The shifts of the stream, and up to 16 others for rehearsals.

    Tempered answers are scored on the stream: after a rehearsal on the same shifts their scores would be too
    good. So no shift is in both, unless too few others are left; the one that changes nothing, which every
    rehearsal has, is not in the stream.
    """
    own = shifts if isinstance(shifts, Mapping) else None
    known = chosen_shifts(own, inputs, columns, "recommend")
    every = {name: shift for name, shift in known.items() if name != NO_SHIFT}
    stream = dict(list(every.items())[:shifts]) if isinstance(shifts, int) else every
    others = {name: shift for name, shift in every.items() if name not in stream}
    enough = others if len(others) >= FEWEST_SHIFTS - 1 else every
    return stream, dict(list(enough.items())[: MOST_SHIFTS - 1])


def rehearsal_seconds(trial: Trial, setting: Setting, shifts: Shifts) -> float:
    """An estimate of the time of a rehearsal of these shifts and of the one that changes nothing."""
    continual = make_method(trial.candidate.name, dict(trial.candidate.options))[0].learns is not None
    samples = count_samples(len(shifts) + 1, len(setting.stream.labelled), continual)
    return trial.seconds * samples / len(setting.stream)


def rehearsed_statistics(candidate: Candidate, setting: Setting, shifts: Shifts) -> SourceStatistics:
    """The source statistics with a rehearsal of the method, on the samples of the stream."""
    stream = setting.stream
    loader = ((part.inputs, part.labels) for part in stream.labelled.batches(stream.batch_size))
    return rehearse(
        setting.model,
        loader,
        method=candidate.name,
        shifts=shifts,
        source=setting.source,
        inputs=as_it_is,
        outputs=setting.outputs,
        samples=len(stream.labelled),
        batch_size=stream.batch_size,
        seed=stream.seed,
        check_held_out=False,  # checked once, for all methods
        progress=False,
        **candidate.options,
    )


def tempered(trial: Trial, plain: Trial, setting: Setting, source: SourceStatistics) -> Tensor:
    """The answers of a trial with `tempering="rehearsed"`; `plain` is the trial of the source model."""
    name, options = trial.candidate.name, trial.candidate.options
    own = {"tempering": "rehearsed", "distributed": False, "outputs": setting.outputs}
    temper = create(name, setting.model, source, **own, **options).temper
    observed, answers = temper.initial(), []
    novelty = Novelty(source.inputs) if source.inputs else None
    for part, inputs in setting.stream.batches(torch.device("cpu")):
        if part.fresh:
            observed = temper.initial()
        here, every = trial.answers[part.places], torch.ones(len(part.places), dtype=torch.bool)
        view = temper.view(plain.answers[part.places]) if temper.compares else None
        new = None if novelty is None else novelty(leaves(inputs))
        divided = temper.divide(observed, here, view, every, new)
        observed = dict(divided.observed)
        answers.append(divided.logits)
    return torch.cat(answers)
