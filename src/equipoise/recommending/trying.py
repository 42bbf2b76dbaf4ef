"""One pass of a method over a made-up stream, within a budget of time."""

import math
import statistics
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import EquipoiseError, RehearsalError
from equipoise.factory import create
from equipoise.network.outputs import OutputsFunction
from equipoise.recommending.candidates import DEFAULT, NO_ADAPTATION, Candidate
from equipoise.recommending.made_up_stream import MadeUpStream
from equipoise.rehearsing.rehearse import as_it_is

TIMED = 3
"""Batches after which the time of a whole pass is estimated; the first is not timed, as it warms up."""


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

    def refusal(self, needed: float) -> str:
        """The reason why something that takes so many seconds is not done; empty if there is time."""
        if needed <= self.left:
            return ""
        return f"no time: about {needed:.0f} s, and {max(self.left, 0):.0f} s of the budget were left"


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
        return _pass(candidate, setting, budget)
    except RehearsalError:
        raise  # of a shift: it would fail with every method
    except EquipoiseError as error:
        return Trial(candidate, None, problem=f"{error}")
    except Exception as error:  # one method that fails must not lose the others
        return Trial(candidate, None, problem=f"{type(error).__name__}: {error}")


def _pass(candidate: Candidate, setting: Setting, budget: Budget) -> Trial:
    own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": setting.outputs}
    adapter = create(candidate.name, setting.model, setting.source, **own, **candidate.options)
    stream, answers, times = setting.stream, [], []
    batches = len(stream.parts())
    before = time.monotonic()
    for number, (part, inputs) in enumerate(stream.batches(adapter.device), 1):
        if part.fresh:
            adapter.reset()
        answers.append(adapter(inputs).detach().float().cpu())
        now = time.monotonic()
        times.append(now - before)
        before = now
        if number == TIMED and candidate.name not in (NO_ADAPTATION, DEFAULT):
            needed = statistics.mean(times[1:]) * (batches - TIMED)
            if problem := budget.refusal(needed):
                return Trial(candidate, None, problem=problem)
    logits = torch.cat(answers)
    seconds = statistics.median(times) * batches
    bad = int((~logits.isfinite().all(1)).sum())
    if bad:
        return Trial(candidate, None, seconds, f"{bad} of {len(logits)} answers are not finite")
    return Trial(candidate, logits, seconds, compares=adapter.method.compares)
