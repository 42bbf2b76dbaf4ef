"""Methods tried on a made-up stream within a budget of time, and the one that is chosen tempered."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from equipoise.adapter import Adapter
from equipoise.calibration.novelty import Novelty
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import EquipoiseError, ModelError, RehearsalError
from equipoise.evaluation import evaluate
from equipoise.factory import create, make_method
from equipoise.network.batch import leaves
from equipoise.network.forward import OutputsFunction
from equipoise.recommendation.candidates import DEFAULT, NO_ADAPTATION, Candidate
from equipoise.recommendation.choice import Form, chosen_form, shift_sums
from equipoise.recommendation.made_up_stream import MadeUpStream
from equipoise.rehearsal.labelled import Inputs, mapped
from equipoise.rehearsal.passes import count_samples
from equipoise.rehearsal.rehearse import as_it_is, rehearse
from equipoise.rehearsal.shifts import FEWEST_SHIFTS, NO_SHIFT, ColumnKinds, Shifts, chosen_shifts

TIMED = 3
"""Batches after which the time of a whole pass is estimated; the first is not timed, as it warms up."""

FIRST_SAMPLES = 2
"""Samples that are timed first, where there is a limit: some methods take many forwards for each sample."""


class UntriedError(EquipoiseError):
    """The reason why a method has no answers: there is no time for it, or it failed."""


@dataclass(frozen=True)
class Budget:
    """Seconds that trying may take, from the moment this was made; None: no limit."""

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        if self.seconds is None:
            return math.inf
        return self.started + self.seconds - time.monotonic()

    def check(self, needed: float, known: str = "") -> None:
        """Raise UntriedError if there is no time for something that takes so many seconds.

        `known` says how long it takes in other words than the number of seconds.
        """
        left = self.left
        if needed > left:
            known = known or f"about {needed:.0f} s"
            raise UntriedError(f"no time: {known}, and {round(max(left, 0), 1):g} s of the budget were left")


@dataclass(frozen=True)
class Setting:
    """The facts that all methods share: the model, its source statistics and the stream."""

    model: nn.Module
    source: SourceStatistics
    outputs: OutputsFunction | None
    stream: MadeUpStream


@dataclass(frozen=True)
class Trial:
    """A pass of a method over the stream, without tempering.

    Attributes:
        candidate: the method.
        logits: its answers (T, C), on the CPU.
        seconds: that the pass takes: the median of its batches times their number, as single batches may be
            slow for other reasons.
        compares: whether a rehearsal lets the source model answer where that is estimated to be better.
    """

    candidate: Candidate
    logits: Tensor
    seconds: float
    compares: bool


def attempt(candidate: Candidate, setting: Setting, budget: Budget) -> Trial:
    """Try a method; UntriedError where it fails or takes too long, ModelError if that is the source model."""
    if candidate.name in (NO_ADAPTATION, DEFAULT):
        budget = Budget(None)
    try:
        _check_a_batch(candidate, setting, budget)
        return _pass(_adapter(candidate, setting), candidate, setting.stream, budget)
    except RehearsalError:
        raise  # of a shift: it would fail with every method
    except Exception as error:  # one method that fails must not lose the others
        problem = f"{error}" if isinstance(error, EquipoiseError) else f"{type(error).__name__}: {error}"
        if candidate.name == NO_ADAPTATION:
            raise ModelError(f"expected a model that answers the shifted samples: {problem}") from error
        raise UntriedError(problem) from error


def _adapter(candidate: Candidate, setting: Setting, **others: Any) -> Adapter:
    own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": setting.outputs}
    return create(candidate.name, setting.model, setting.source, **{**candidate.options, **own, **others})


def _check_a_batch(candidate: Candidate, setting: Setting, budget: Budget) -> None:
    """Raise UntriedError if there is no time for a single batch.

    The first 2, 4, 8, … samples of the first batch are timed, until a whole batch fits even if its time grows
    with its size, or twice as many samples do not. An adapter of its own: no graph is captured for few.
    """
    budget.check(0, "not tried at all")
    if math.isinf(budget.left):
        return
    adapter, size = _adapter(candidate, setting, engine="eager"), FIRST_SAMPLES
    part, inputs = next(setting.stream.batches(adapter.device))
    while size < len(part.places):
        before = time.monotonic()
        next(evaluate(adapter, [mapped(inputs, itemgetter(slice(size)))]))
        seconds = time.monotonic() - before
        if seconds * len(part.places) / size <= budget.left:
            return
        budget.check(2 * seconds, f"{size} samples take {seconds:.1f} s")
        size *= 2


def _pass(adapter: Adapter, candidate: Candidate, stream: MadeUpStream, budget: Budget) -> Trial:
    """The answers of a method to the stream; after the first batches, is there time for all others?"""
    found, times = list[Tensor](), list[float]()
    parts, inputs = stream.parts(), (inputs for _, inputs in stream.batches(adapter.device))
    answers, batches, before = evaluate(adapter, inputs), len(parts), time.monotonic()
    for number, part in enumerate(parts, 1):
        if part.fresh:
            adapter.reset()
        found.append(next(answers).logits.float())
        now = time.monotonic()
        times.append(now - before)
        before = now
        if number < min(TIMED, batches):
            budget.check(times[-1], f"one of {batches} batches takes {times[-1]:.1f} s")
        elif number == TIMED < batches:
            budget.check(statistics.mean(times[1:]) * (batches - TIMED))
    logits = torch.cat(found)
    if bad := int((~logits.isfinite().all(1)).sum()):
        raise UntriedError(f"{bad} of {len(logits)} answers are not finite")
    return Trial(candidate, logits, statistics.median(times) * batches, adapter.method.compares)


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
        here, every = trial.logits[part.places], torch.ones(len(part.places), dtype=torch.bool)
        view = temper.view(plain.logits[part.places]) if temper.compares else None
        new = None if novelty is None else novelty(leaves(inputs))
        divided = temper.divide(observed, here, view, every, new)
        observed = dict(divided.observed)
        answers.append(divided.logits)
    return torch.cat(answers)


class Omission(NamedTuple):
    """A form of a method that has no scores, and the reason."""

    candidate: Candidate
    tempering: Literal["none", "rehearsed"]
    problem: str


@dataclass
class Session:
    """The results so far.

    Attributes:
        setting: the model and the stream.
        shifts: of rehearsals.
        budget: for all of it.
        forms: those with scores.
        omissions: those without.
        rehearsed: source statistics with the rehearsal of a method, by the method with its options.
    """

    setting: Setting
    shifts: Shifts
    budget: Budget
    forms: list[Form] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    rehearsed: dict[str, SourceStatistics] = field(default_factory=dict)
    _trials: dict[str, Trial] = field(default_factory=dict, init=False)

    def run(self, listed: Sequence[Candidate], progress: bool) -> None:
        """Try all methods, no adaptation first, and temper the one that is chosen.

        Tempering changes no accuracy, except where the source model may answer: such methods are tempered
        when they are tried. So one rehearsal more is enough.
        """
        bar = tqdm(listed, desc="trying methods", unit="method") if progress else listed
        for candidate in bar:
            if isinstance(bar, tqdm):
                bar.set_postfix_str(candidate.name)
            self._try(candidate)
        self._temper(chosen_form(self.forms).candidate)

    def _try(self, candidate: Candidate) -> None:
        try:
            trial = attempt(candidate, self.setting, self.budget)
        except UntriedError as problem:
            self.omissions.append(Omission(candidate, "none", str(problem)))
            return
        self._trials[str(candidate)] = trial
        self.forms.append(self._form(trial, trial.logits, "none", trial.seconds))
        if trial.compares:  # with a rehearsal its answers are others, not just less confident
            self._temper(candidate)

    def _temper(self, candidate: Candidate) -> None:
        """Rehearse a method and add its tempered form, once, if there is time."""
        name, settled = str(candidate), [omission.candidate for omission in self.omissions]
        trial, plain = self._trials[name], self._trials[NO_ADAPTATION]
        if name in self.rehearsed or candidate in settled:
            return
        try:
            self.budget.check(rehearsal_seconds(trial, self.setting, self.shifts))
            source = rehearsed_statistics(candidate, self.setting, self.shifts)
        except EquipoiseError as problem:
            self.omissions.append(Omission(candidate, "rehearsed", str(problem)))
            return
        self.rehearsed[name] = source
        logits = tempered(trial, plain, self.setting, source)
        extra = plain.seconds if trial.compares else 0.0
        self.forms.append(self._form(trial, logits, "rehearsed", trial.seconds + extra))

    def _form(
        self, trial: Trial, logits: Tensor, tempering: Literal["none", "rehearsed"], seconds: float
    ) -> Form:
        stream = self.setting.stream
        sums = shift_sums(logits, stream.labels, stream.domains, len(stream.shifts))
        return Form(trial.candidate, tempering, sums, seconds)
