"""Each trigger alone, and the e-process against its formula, its false alarms and its power."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.production.guard.eprocess import EProcess
from equipoise.production.guard.observation import Observation, answer_pairs
from equipoise.production.guard.triggers import (
    Alarm,
    BelowSource,
    Collapse,
    Disagreement,
    Estimates,
    Labels,
    Runaway,
    paired_process,
)


def by_hand(losses: np.ndarray, epsilon: float, half_life: float) -> np.ndarray:
    """ln M after each loss, written out from the formula."""
    wealth, logs = 1.0, []
    for t, loss in enumerate(losses):
        bet = 0.0
        if t:
            weights = 0.5 ** (np.arange(t)[::-1] / half_life)
            mean = (weights * losses[:t]).sum() / weights.sum()
            variance = (weights * losses[:t] ** 2).sum() / weights.sum() - mean**2
            if mean > epsilon:
                bet = np.clip((mean - epsilon) / (variance + (mean - epsilon) ** 2), 0, 0.9 / epsilon)
        wealth *= 1 + bet * (loss - epsilon)
        logs.append(math.log(wealth))
    return np.array(logs)


def run(losses: np.ndarray, epsilon: float, delta: float = 0.01, half_life: float = 10.0) -> list[EProcess]:
    process, all_of_them = EProcess(epsilon, delta, half_life), []
    for batch, loss in enumerate(losses, 1):
        process = process.after(float(loss), batch)
        all_of_them.append(process)
    return all_of_them


@pytest.mark.parametrize(("epsilon", "high"), [(0.525, 1.0), (0.45, 0.9), (0.1, 0.3)])
def test_the_wealth_is_the_product_of_the_bets(epsilon: float, high: float) -> None:
    losses = np.random.default_rng(0).uniform(0, high, 60)
    found = [process.log_wealth for process in run(losses, epsilon)]
    np.testing.assert_allclose(found, by_hand(losses, epsilon, 10.0), rtol=0, atol=1e-9)
    assert len(set(found)) > 10


def test_a_bet_that_was_made_elsewhere_is_taken() -> None:
    start = EProcess(0.5, 0.01, 5.0).after(0.8, 1)
    assert start.after(0.9, 2, 0.3).log_wealth == pytest.approx(math.log(1 + 0.3 * 0.4), abs=1e-12)
    assert start.after(0.9, 2, 0.0).log_wealth == 0


def test_the_first_loss_is_not_bet_on() -> None:
    assert run(np.array([1.0]), 0.1)[0].log_wealth == 0


def test_wealth_stays_while_losses_are_tolerable() -> None:
    assert run(np.full(1000, 0.3), 0.5)[-1].log_wealth == 0


@pytest.mark.parametrize("stream", ["coins", "uniform", "bursts"])
def test_false_alarms_are_at_most_delta_on_the_boundary(stream: str) -> None:
    delta, streams, length, epsilon = 0.1, 200, 200, 0.5
    draw = np.random.default_rng(7)
    if stream == "coins":
        losses = draw.integers(0, 2, (streams, length)).astype(float)
    elif stream == "uniform":
        losses = draw.uniform(0, 1, (streams, length))
    else:  # the spread changes with the past, the mean does not
        losses = 0.5 + np.sign(draw.normal(size=(streams, length))) * np.where(
            np.arange(length) // 20 % 2, 0.5, 0.02
        )
    alarms = sum(any(p.alarm for p in run(row, epsilon, delta)) for row in losses)
    assert alarms / streams <= delta


def test_losses_above_the_tolerated_are_found_soon() -> None:
    draw = np.random.default_rng(3)
    delays = []
    for _ in range(50):
        losses = np.concatenate([draw.uniform(0, 0.6, 50), draw.uniform(0.5, 1.0, 100)])
        first = next(t for t, p in enumerate(run(losses, 0.525), 1) if p.alarm)
        delays.append(first - 50)
    assert min(delays) > 0
    assert np.mean(delays) < 50


def test_the_evidence_began_where_the_wealth_was_last_lowest() -> None:
    losses = np.concatenate([np.full(40, 0.3), np.full(60, 0.9)])
    process = run(losses, 0.5)[-1]
    # After the change the window's mean has to come above ε before anything is bet.
    assert process.alarm
    assert 40 <= process.calm <= 52


def test_the_alarm_is_at_one_over_delta() -> None:
    quiet = EProcess(0.5, 0.01, 10.0, log_wealth=math.log(100) - 1e-9)
    assert not quiet.alarm
    assert EProcess(0.5, 0.01, 10.0, log_wealth=math.log(100)).alarm
    assert quiet.evidence == pytest.approx(1.0)


def test_its_numbers_survive_json() -> None:
    process = run(np.random.default_rng(1).uniform(0, 1, 20), 0.4)[-1]
    assert EProcess(**json.loads(json.dumps(asdict(process)))) == process


CLASSES = 10
PAIRED = Estimates(paired_process(0.05, 0.01, 10.0))


def seen(own: Any = (), source: Any = (), **others: Any) -> Observation:
    """An observation of classes answered by both models."""
    eye = torch.eye(CLASSES)
    pairs = answer_pairs(eye[torch.as_tensor(own)], eye[torch.as_tensor(source)]) if len(own) else ()
    return Observation(len(own), CLASSES, pairs, **others)


def collapse(delta: float = 0.01) -> Collapse:
    return Collapse(EProcess(0.5, delta, 10.0))


def estimates(accuracy: float, source: float, width: float = 0.02, **others: Any) -> Observation:
    own, theirs = ((value, value - width, value + width) for value in (accuracy, source))
    return Observation(50, CLASSES, accuracy=own, source_accuracy=theirs, **others)


def first_alarm(trigger: Any, stream: Any) -> tuple[int, Alarm] | None:
    for batch, came in enumerate(stream, 1):
        trigger = trigger.after(*(came if isinstance(came, tuple) else (came,)), batch)
        if trigger.alarm is not None:
            return batch, trigger.alarm
    return None


# ---------------------------------------------------------------------- collapse


def test_pairs_count_the_answers_of_both_models_and_leave_out_what_is_not_finite() -> None:
    own = torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 1.0], [torch.nan, 1.0]])
    theirs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [torch.inf, 0.0], [1.0, 0.0]])
    assert answer_pairs(own, theirs) == ((0, 0, 1), (1, 0, 1))


def test_answers_that_all_go_to_one_class_are_an_alarm_in_a_few_batches() -> None:
    draw = np.random.default_rng(0)
    classes = [draw.integers(0, CLASSES, 50) for _ in range(40)]
    stream = [seen(c, c) for c in classes[:20]] + [seen(np.full(50, 3), c) for c in classes[20:]]
    found = first_alarm(collapse(), stream)
    assert found is not None
    batch, alarm = found
    # K and the bet take three batches; then ℓ − ε is about .4, λ at most 1.8 and 1 + λ(ℓ − ε) at most 1.72.
    assert 20 + 3 + 8 < batch <= 35
    assert 19 <= alarm.calm <= 23
    assert "class 3" in alarm.reason


@pytest.mark.parametrize(
    ("size", "batches", "classes"), [(1, 220, [3]), (3, 86, [3]), (50, 24, [3]), (50, 25, [0, 1])]
)
def test_a_collapse_is_found_in_batches_of_any_size(size: int, batches: int, classes: list[int]) -> None:
    draw = np.random.default_rng(size)
    stream = [seen(draw.choice(classes, size), draw.integers(0, CLASSES, size)) for _ in range(batches)]
    assert first_alarm(collapse(), stream) is not None


def test_a_stream_of_one_class_or_sorted_by_class_is_no_collapse() -> None:
    draw = np.random.default_rng(0)

    def noisy(label: int, right: float) -> Any:
        return np.where(draw.uniform(size=50) < right, label, draw.integers(0, CLASSES, 50))

    one = [seen(noisy(4, 0.95), noisy(4, 0.7)) for _ in range(300)]
    sorted_ = [seen(noisy(t // 30, 0.9), noisy(t // 30, 0.6)) for t in range(300)]
    assert first_alarm(collapse(), one) is None
    assert first_alarm(collapse(), sorted_) is None


def test_answers_that_spread_over_more_classes_than_the_source_models_are_no_collapse() -> None:
    draw = np.random.default_rng(0)
    stream = [seen(draw.integers(0, CLASSES, 50), np.full(50, 3)) for _ in range(100)]
    assert first_alarm(collapse(), stream) is None


def test_the_source_model_itself_never_gains_evidence() -> None:
    draw, trigger = np.random.default_rng(0), collapse()
    for batch in range(200):
        answers = draw.integers(0, CLASSES, 7)
        trigger = trigger.after(seen(answers, answers), batch)
    assert trigger.process.log_wealth == 0
    assert trigger.process.calm == 199


# ---------------------------------------------------------------------- disagreement


def disagreement(limit: float | None = 0.3, delta: float = 0.01, tolerance: float = 0.05) -> Disagreement:
    return Disagreement.beyond(limit, tolerance, delta, 4.0)


@cache
def apart(differing: int, size: int = 50, **others: Any) -> Observation:
    """A batch in which so many answers are of other classes than the source model's, spread over them."""
    own = torch.arange(size) % CLASSES
    theirs = torch.where(torch.arange(size) < differing, (own + 1) % CLASSES, own)
    return seen(own, theirs, **others)


def test_answers_that_differ_beyond_the_limit_are_an_alarm_whatever_the_estimates() -> None:
    well = {"accuracy": (0.9, 0.88, 0.92), "source_accuracy": (0.5, 0.48, 0.52)}
    stream = [apart(15, **well)] * 20 + [apart(45, **well)] * 40
    found = first_alarm(disagreement(), stream)
    assert found is not None
    batch, alarm = found
    # ℓ − ε = .9 − .35, and λ is at most .9 / .35: each batch multiplies the wealth by at most 2.41.
    assert 20 + np.log(100) / np.log(1 + 0.9 / 0.35 * 0.55) < batch <= 35
    assert alarm.trigger == "disagreement"
    assert 20 <= alarm.calm <= 24
    assert first_alarm(PAIRED, stream) is None
    assert first_alarm(collapse(), stream) is None


def test_its_reason_has_the_share_that_differs_and_the_limit() -> None:
    found = first_alarm(disagreement(), [apart(45)] * 40)
    assert found is not None
    # Equal losses: λ = 1 / (ℓ − ε) from the second batch on, and each doubles the wealth.
    assert found[0] == 1 + np.ceil(np.log2(100))
    assert "90 % of the answers" in found[1].reason
    assert "at most 30 %" in found[1].reason


@pytest.mark.parametrize("differing", [0, 15, 17])
def test_answers_that_differ_within_the_limit_and_the_tolerance_are_none(differing: int) -> None:
    draw = np.random.default_rng(differing)
    stream = (apart(int(n)) for n in draw.binomial(50, differing / 50, 3000))
    assert first_alarm(disagreement(delta=0.001), stream) is None


@pytest.mark.parametrize(
    "observation", [apart(50, answered_by="source"), seen(), Observation(50, CLASSES)], ids=str
)
def test_a_batch_that_the_adapted_model_does_not_answer_is_no_evidence(observation: Observation) -> None:
    trigger = disagreement().after(apart(50), 1)
    assert trigger.after(observation, 2) == trigger


def test_a_held_model_that_differs_is_evidence_as_it_answers() -> None:
    assert first_alarm(disagreement(), [apart(45, learned=False)] * 40) is not None


def test_without_a_rehearsed_limit_there_is_no_evidence() -> None:
    trigger = disagreement(None)
    assert first_alarm(trigger, [apart(50)] * 2000) is None
    assert trigger.after(apart(50), 1) == trigger


def test_a_higher_tolerance_permits_as_much_more_disagreement() -> None:
    stream = [apart(25)] * 500
    assert first_alarm(disagreement(0.3, tolerance=0.15), stream) is not None
    assert first_alarm(disagreement(0.3, tolerance=0.25), stream) is None


@pytest.mark.parametrize(("limit", "tolerance"), [(0.0, 0.0), (1.0, 0.05), (0.9, 1.0)])
def test_limits_at_the_ends_of_the_range_can_be_tested(limit: float, tolerance: float) -> None:
    trigger = disagreement(limit, tolerance=tolerance)
    assert 0 < trigger.process.epsilon < 1
    assert first_alarm(trigger, [apart(0)] * 1000) is None
    assert first_alarm(trigger, [apart(50)] * 1000) is not None


# ---------------------------------------------------------------------- estimates


def test_estimates_far_below_the_source_models_are_an_alarm() -> None:
    found = first_alarm(PAIRED, [estimates(0.5, 0.8)] * 100)
    assert found is not None
    # ℓ − ε = (.3 − .05) / 2 and λ = .9 / .525 from the second batch on: 1 + λ(ℓ − ε) = 1.214.
    assert found[0] == 1 + np.ceil(np.log(100) / np.log(1 + 0.9 / 0.525 * 0.125))
    assert found[1].trigger == "estimates"


def test_without_estimates_there_is_no_evidence() -> None:
    far = estimates(0.1, 0.9)
    for observation in (seen([1], [2]), replace(far, source_accuracy=None), replace(far, learned=False)):
        assert PAIRED.after(observation, 1) == PAIRED


def test_intervals_that_stay_apart_are_an_alarm_with_both_accuracies() -> None:
    stream = [estimates(0.8, 0.8)] * 7 + [estimates(0.5, 0.8)] * 9
    found = first_alarm(BelowSource(0.05), stream)
    assert found is not None
    batch, alarm = found
    assert (batch, alarm.calm) == (12, 7)
    assert "0.500" in alarm.reason
    assert "0.800" in alarm.reason


SERVED = [estimates(0.5, 0.8, answered_by="source")] * 1000  # the source model's answers: nothing adapted


@pytest.mark.parametrize(
    ("trigger", "stream"),
    [
        (PAIRED, [estimates(0.76, 0.8)] * 1000),
        (PAIRED, [estimates(0.9, 0.8)] * 1000),
        (PAIRED, SERVED),
        (BelowSource(0.05), SERVED),
        (BelowSource(0.05), [estimates(0.5, 0.8, width=0.2)] * 50),
        (BelowSource(0.05), ([estimates(0.5, 0.8)] * 4 + [estimates(0.8, 0.8)]) * 20),
        (BelowSource(0.05), [estimates(0.76, 0.8, width=0.001)] * 50),
        (Runaway(), [seen(weights=min(0.04 * step, 0.98), statistics=50.0) for step in range(30)]),
        (Runaway(0.4), [seen(weights=0.4), seen(weights=0.0)]),
    ],
)
def test_numbers_within_limits_or_of_the_source_model_are_no_alarm(
    trigger: Any, stream: list[Observation]
) -> None:
    assert first_alarm(trigger, stream) is None


# ---------------------------------------------------------------------- labels


def test_labels_find_a_worse_model_in_a_few_batches() -> None:
    trigger, batch = Labels(paired_process(0.05, 0.01, 10.0)), 0
    while trigger.alarm is None:
        batch += 1
        trigger = trigger.after(15, 33, 2, batch)
    # ℓ − ε = (.26 − .05) / 2 and λ = .9 / .525 from the second batch on.
    assert batch == 1 + np.ceil(np.log(100) / np.log(1 + 0.9 / 0.525 * 0.105))
    assert trigger.alarm.trigger == "labels"


def test_labels_of_an_equal_or_better_model_are_no_alarm() -> None:
    draw = np.random.default_rng(0)
    trigger = Labels(paired_process(0.05, 0.01, 10.0))
    for batch in range(500):
        worse, better = draw.binomial(10, 0.25), draw.binomial(10, 0.25)
        trigger = trigger.after(worse, 40, better, batch)
        assert trigger.alarm is None


def moving_answers(draw: np.random.Generator) -> list[Observation]:
    pairs = (((0, 1, int(n)), (2, 2, 20 - int(n))) for n in draw.binomial(20, 0.5, 60))
    return [Observation(20, CLASSES, each) for each in pairs]


def moving_scenes(draw: np.random.Generator, size: int) -> list[Observation]:
    scenes = zip(draw.integers(1, CLASSES, 100), draw.random(100) < 0.5, strict=True)
    return [Observation(size, CLASSES, ((0 if moved else int(c), int(c), size),)) for c, moved in scenes]


def differing_answers(draw: np.random.Generator, size: int) -> list[Observation]:
    return [apart(int(n), size) for n in draw.binomial(size, 0.35, 60)]


def differing_scenes(draw: np.random.Generator) -> list[Observation]:
    return [apart(64 * int(differs), 64) for differs in draw.random(60) < 0.35]


def drawn_labels(draw: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    for _ in range(50):
        worse, better, same = draw.multinomial(20, [0.2, 0.15, 0.65])
        yield worse, same, better


def labels_of_scenes(draw: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Equal accuracies: the three counts of a batch, of which one is all of its 64 frames."""
    for scene in draw.choice(3, 200, p=[0.05, 0.9, 0.05]):
        yield tuple(64 * int(scene == kind) for kind in range(3))


@pytest.mark.parametrize(
    ("trigger", "seed", "streams", "drawn"),
    [
        (collapse(0.1), 5, 150, moving_answers),
        (collapse(0.1), 6, 100, partial(moving_scenes, size=1)),
        (collapse(0.1), 6, 100, partial(moving_scenes, size=64)),
        (disagreement(delta=0.1), 1, 200, partial(differing_answers, size=1)),
        (disagreement(delta=0.1), 20, 200, partial(differing_answers, size=20)),
        (disagreement(delta=0.1), 7, 200, differing_scenes),
        (Labels(paired_process(0.05, 0.1, 10.0)), 11, 300, drawn_labels),
        (Labels(paired_process(0.05, 0.05, 10.0)), 12, 100, labels_of_scenes),
    ],
)
def test_false_alarms_of_a_trigger_are_at_most_delta(
    trigger: Any, seed: int, streams: int, drawn: Callable[[np.random.Generator], Any]
) -> None:
    """H0 on its boundary; the frames of a scene are alike, and move, differ or are right all together."""
    draw = np.random.default_rng(seed)
    alarms = sum(first_alarm(trigger, drawn(draw)) is not None for _ in range(streams))
    assert alarms / streams <= trigger.process.delta


# ---------------------------------------------------------------------- runaway


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"finite": False}, "not finite"),
        ({"weights": 0.51}, "in one batch, by 0.51"),
        ({"weights": 0.06}, "in one batch, by 0.06"),
        ({"statistics": 101.0}, "statistics"),
    ],
)
def test_numbers_beyond_limits_are_an_alarm(values: dict[str, Any], words: str) -> None:
    found = first_alarm(Runaway(), [*[seen()] * 8, seen(**values)])
    assert found is not None
    batch, alarm = found
    assert (batch, alarm.calm) == (9, 8)
    assert words in alarm.reason


@pytest.mark.parametrize(("trigger", "batch", "calm"), [(Runaway(), 51, 25), (Runaway.within(0.1), 21, 10)])
def test_weights_that_creep_away_are_an_alarm_and_calm_was_half_way(
    trigger: Runaway, batch: int, calm: int
) -> None:
    found = first_alarm(trigger, [seen(weights=0.02 * step) for step in range(1, 60)])
    assert found is not None
    assert (found[0], found[1].calm) == (batch, calm)


@pytest.mark.parametrize(
    ("reach", "limit"),
    [(None, 1.0), (0.0, 1.0), (0.15, 0.6), (0.2, 0.8), (0.25, 1.0), (0.7, 1.0), (30.0, 1.0), (1e-3, 4e-3)],
)
def test_weights_may_move_four_times_as_far_as_in_rehearsal(reach: float | None, limit: float) -> None:
    trigger = Runaway.within(reach, 0.98 * limit)
    assert trigger.farthest == pytest.approx(limit)
    assert first_alarm(trigger, [seen(weights=0.99 * limit)] * 5) is None
    found = first_alarm(trigger, [*[seen(weights=0.99 * limit)] * 5, seen(weights=1.01 * limit)])
    assert found is not None
    assert found[0] == 6
    assert f"over the limit of {limit:g}" in found[1].reason
