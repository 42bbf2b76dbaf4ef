"""One pass of a method over a made-up stream, within a budget of time."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import EquipoiseError, RehearsalError
from equipoise.evaluation import evaluate
from equipoise.factory import create
from equipoise.network.forward import OutputsFunction
from equipoise.recommendation.candidates import DEFAULT, NO_ADAPTATION, Candidate
from equipoise.recommendation.made_up_stream import MadeUpStream
from equipoise.rehearsal.labelled import mapped
from equipoise.rehearsal.rehearse import as_it_is

TIMED = 3
"""Batches after which the time of a whole pass is estimated; the first is not timed, as it warms up."""

FIRST_SAMPLES = 2
"""Samples that are timed first, where there is a limit: some methods take many forwards for each sample."""


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

    def refusal(self, needed: float, known: str = "") -> str:
        """The reason why something that takes so many seconds is not done; empty if there is time.

        `known` says how long it takes in other words than the number of seconds.
        """
        left = self.left
        if needed <= left:
            return ""
        known = known or f"about {needed:.0f} s"
        return f"no time: {known}, and {round(max(left, 0), 1):g} s of the budget were left"


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
        logits: its answers (T, C), on the CPU; None where it was not tried, or failed.
        seconds: that the pass takes: the median of its batches times their number, as single batches may be
            slow for other reasons.
        problem: the reason why there are no answers; empty otherwise.
        compares: whether a rehearsal lets the source model answer where that is estimated to be better.
    """

    candidate: Candidate
    logits: Tensor | None
    seconds: float = 0.0
    problem: str = ""
    compares: bool = False

    @property
    def answers(self) -> Tensor:
        """The logits of a method that was tried."""
        if self.logits is None:
            raise RuntimeError(f"{self.candidate} has no answers: {self.problem}")
        return self.logits


def attempt(candidate: Candidate, setting: Setting, budget: Budget) -> Trial:
    """Try a method; an error of it, or too little time, becomes the trial's `problem`."""
    try:
        return _tried(candidate, setting, budget)
    except RehearsalError:
        raise  # of a shift: it would fail with every method
    except EquipoiseError as error:
        return Trial(candidate, None, problem=f"{error}")
    except Exception as error:  # one method that fails must not lose the others
        return Trial(candidate, None, problem=f"{type(error).__name__}: {error}")


def _tried(candidate: Candidate, setting: Setting, budget: Budget) -> Trial:
    if candidate.name in (NO_ADAPTATION, DEFAULT):
        budget = Budget(None)
    if problem := _refusal_of_a_batch(candidate, setting, budget):
        return Trial(candidate, None, problem=problem)
    return _pass(_adapter(candidate, setting), candidate, setting.stream, budget)


def _adapter(candidate: Candidate, setting: Setting, **others: Any) -> Adapter:
    own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": setting.outputs}
    return create(candidate.name, setting.model, setting.source, **{**candidate.options, **own, **others})


def _refusal_of_a_batch(candidate: Candidate, setting: Setting, budget: Budget) -> str:
    """The reason why not even one batch is tried; empty if there is time for one.

    The first 2, 4, 8, … samples of the first batch are timed, until a whole batch fits even if its time grows
    with its size, or twice as many samples do not. An adapter of its own: no graph is captured for few.
    """
    if problem := budget.refusal(0, "not tried at all"):
        return problem
    if math.isinf(budget.left):
        return ""
    adapter, size = _adapter(candidate, setting, engine="eager"), FIRST_SAMPLES
    part, inputs = next(setting.stream.batches(adapter.device))
    while size < len(part.places):
        before = time.monotonic()
        next(evaluate(adapter, [mapped(inputs, itemgetter(slice(size)))]))
        seconds = time.monotonic() - before
        if seconds * len(part.places) / size <= budget.left:
            return ""
        if problem := budget.refusal(2 * seconds, f"{size} samples take {seconds:.1f} s"):
            return problem
        size *= 2
    return ""


def _pass(adapter: Adapter, candidate: Candidate, stream: MadeUpStream, budget: Budget) -> Trial:
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
        if number < batches and (problem := _refusal_of_the_rest(times, batches, budget)):
            return Trial(candidate, None, problem=problem)
    logits = torch.cat(found)
    seconds = statistics.median(times) * batches
    bad = int((~logits.isfinite().all(1)).sum())
    if bad:
        return Trial(candidate, None, seconds, f"{bad} of {len(logits)} answers are not finite")
    return Trial(candidate, logits, seconds, compares=adapter.method.compares)


def _refusal_of_the_rest(times: Sequence[float], batches: int, budget: Budget) -> str:
    """The reason why a pass ends after some of its first batches: no time for one more, or for all others."""
    if len(times) < TIMED:
        return budget.refusal(times[-1], f"one of {batches} batches takes {times[-1]:.1f} s")
    if len(times) == TIMED:
        return budget.refusal(statistics.mean(times[1:]) * (batches - TIMED))
    return ""
