"""The budget of a recommendation, by a clock that a method of known costs moves on."""

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.core.method import Context, Method, Update
from equipoise.recommendation.candidates import Candidate
from equipoise.recommendation.made_up_stream import make_up_stream
from equipoise.recommendation.trial import (
    Budget,
    Setting,
    Trial,
    UntriedError,
    attempt,
    rehearsal_seconds,
    rehearsed_statistics,
)
from equipoise.rehearsal.labelled import take
from tests.support.rehearsals import held_out, trained


class Clock:
    """Seconds that pass only when a method says so, and the sizes of the batches that it had."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sizes: list[int] = []


CLOCK = Clock()


@dataclass(frozen=True, kw_only=True)
class Costly(Method):
    """Answers as the source model does, and takes time for each batch, sample and whole batch of 50."""

    name = "costly"

    batch: float = 0.0
    sample: float = 0.0
    whole: float = 0.0

    def step(self, context: Context) -> Update:
        logits = context.student.frozen(context.batch)
        CLOCK.sizes.append(len(logits))
        CLOCK.now += self.batch + self.sample * len(logits) + self.whole * (len(logits) == 50)
        return Update(logits)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    eq.register(Costly)
    CLOCK.now, CLOCK.sizes = 0.0, []
    monkeypatch.setattr(time, "monotonic", lambda: CLOCK.now)
    return CLOCK


def setting_of(length: int) -> Setting:
    """A stream of `length` samples in batches of 50."""
    labelled, model = take(held_out(), 100, 0, progress=False), trained()
    source = eq.SourceStatistics.measure(model, held_out(), progress=False)
    shifts = {f"shift {place}": lambda x, _: x for place in range(max(1, length // 100))}
    stream = make_up_stream(labelled, shifts, "continual", {}, length=length, batch_size=50, seed=0)
    return Setting(model, source, None, stream)


def tried(seconds: float | None, *, length: int = 800, **costs: float) -> Trial:
    """A pass over `length` samples in batches of 50."""
    return attempt(Candidate("costly", costs), setting_of(length), Budget(seconds, started=0.0))


@pytest.mark.parametrize(
    ("started", "left", "costs", "sizes", "reason"),
    [
        (2.0, 1.0, {"sample": 1.0}, [], "not tried at all, and 0 s"),
        (0.0, 10.0, {"sample": 1.0}, [2, 4], "4 samples take 4.0 s, and 4 s"),  # so 50 are not begun
        (0.0, 10.0, {"batch": 6.0}, [2], "2 samples take 6.0 s, and 4 s"),
    ],
)
def test_a_few_samples_may_be_enough_to_know(
    clock: Clock, started: float, left: float, costs: dict[str, Any], sizes: list[int], reason: str
) -> None:
    clock.now = started
    with pytest.raises(UntriedError) as error:
        tried(left, **costs)
    assert str(error.value) == f"no time: {reason} of the budget were left"
    assert clock.sizes == sizes
    assert clock.now - started == sum(costs.get("batch", 0) + costs.get("sample", 0) * n for n in sizes)


@pytest.mark.parametrize(("seconds", "batches"), [(16.0, 1), (24.0, 2), (100.0, 3)])
def test_first_batches_end_as_soon_as_there_is_no_time_for_another(
    clock: Clock, seconds: float, batches: int
) -> None:
    after = "one of 16 batches takes 8.0 s" if batches < 3 else "about 104 s"
    with pytest.raises(UntriedError, match=f"^no time: {after}, and "):
        tried(seconds, batch=1.0, whole=7.0)
    assert clock.sizes.count(50) == batches
    assert clock.now <= seconds


def test_costs_of_a_batch_are_no_costs_of_its_samples(clock: Clock) -> None:
    tried(25.0, batch=1.0)  # 25 s for a batch, if the time of 2 samples were theirs
    assert clock.sizes == [2, 4] + [50] * 16


@pytest.mark.parametrize("seconds", [None, 1e6])
def test_answers_are_the_same_with_and_without_a_limit(clock: Clock, seconds: float | None) -> None:
    found = tried(seconds, sample=0.01)
    assert clock.sizes == ([] if seconds is None else [2]) + [50] * 16
    assert found.seconds == pytest.approx(8)
    clock.now = 0.0
    assert torch.equal(found.logits, tried(None).logits)


def test_a_pass_that_is_done_is_not_refused(clock: Clock) -> None:
    tried(5.0, length=50, whole=9.0)
    assert clock.sizes == [2, 50]


@pytest.mark.parametrize("count", [7, 15])
def test_the_time_of_a_rehearsal_is_that_of_all_its_samples(clock: Clock, count: int) -> None:
    setting, trial = setting_of(800), tried(None, sample=0.01)
    shifts = {f"shift {place}": lambda x, _: x for place in range(count)}
    clock.now, clock.sizes = 0.0, []
    rehearsed_statistics(trial.candidate, setting, shifts)
    assert rehearsal_seconds(trial, setting, shifts) == pytest.approx(clock.now)
    assert clock.now == pytest.approx(0.01 * sum(clock.sizes))
