"""Each trigger alone."""

from dataclasses import replace
from functools import cache
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

CLASSES = 10


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
    for batch, observation in enumerate(stream, 1):
        trigger = trigger.after(observation, batch)
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


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_collapse_is_found_in_batches_of_any_size(size: int) -> None:
    draw = np.random.default_rng(size)
    stream = [seen(np.full(size, 3), draw.integers(0, CLASSES, size)) for _ in range(200 // size + 20)]
    assert first_alarm(collapse(), stream) is not None


def test_a_collapse_to_two_classes_is_found() -> None:
    draw = np.random.default_rng(0)
    stream = [seen(draw.integers(0, 2, 50), draw.integers(0, CLASSES, 50)) for _ in range(25)]
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


def test_at_a_distance_of_one_half_a_collapse_is_seldom_reported() -> None:
    """H0 on its boundary: half of the answers, drawn at random, go to class 0."""
    draw, delta, alarms = np.random.default_rng(5), 0.1, 0
    for _ in range(150):
        moved = draw.binomial(20, 0.5, 60)
        stream = [Observation(20, CLASSES, ((0, 1, int(n)), (2, 2, 20 - int(n)))) for n in moved]
        alarms += first_alarm(collapse(delta), stream) is not None
    assert alarms / 150 <= delta


@pytest.mark.parametrize("size", [1, 64])
def test_scenes_of_identical_frames_are_no_collapse(size: int) -> None:
    """Half of the scenes, each a batch of frames that are alike, move to class 0: H0 on its boundary."""
    draw, delta, alarms = np.random.default_rng(6), 0.1, 0
    for _ in range(100):
        scenes = zip(draw.integers(1, CLASSES, 100), draw.random(100) < 0.5, strict=True)
        stream = [
            Observation(size, CLASSES, ((0 if moved else int(c), int(c), size),)) for c, moved in scenes
        ]
        alarms += first_alarm(collapse(delta), stream) is not None
    assert alarms / 100 <= delta


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
    assert first_alarm(Estimates(paired_process(0.05, 0.01, 10.0)), stream) is None
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


@pytest.mark.parametrize("size", [1, 20])
def test_false_alarms_of_disagreement_are_at_most_delta_on_the_boundary(size: int) -> None:
    draw, delta, alarms = np.random.default_rng(size), 0.1, 0
    for _ in range(200):
        stream = (apart(int(n), size) for n in draw.binomial(size, 0.35, 60))
        alarms += first_alarm(disagreement(delta=delta), stream) is not None
    assert alarms / 200 <= delta


def test_scenes_of_identical_frames_are_no_disagreement() -> None:
    """H0 on its boundary; the 64 frames of a batch differ all together or not at all."""
    draw, delta, alarms = np.random.default_rng(7), 0.1, 0
    for _ in range(200):
        stream = (apart(64 * int(differs), 64) for differs in draw.random(60) < 0.35)
        alarms += first_alarm(disagreement(delta=delta), stream) is not None
    assert alarms / 200 <= delta


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
    trigger = Estimates(paired_process(0.05, 0.01, 10.0))
    found = first_alarm(trigger, [estimates(0.5, 0.8)] * 100)
    assert found is not None
    # ℓ − ε = (.3 − .05) / 2 and λ = .9 / .525 from the second batch on: 1 + λ(ℓ − ε) = 1.214.
    assert found[0] == 1 + np.ceil(np.log(100) / np.log(1 + 0.9 / 0.525 * 0.125))
    assert found[1].trigger == "estimates"


def test_estimates_within_the_tolerance_are_none() -> None:
    trigger = Estimates(paired_process(0.05, 0.01, 10.0))
    assert first_alarm(trigger, [estimates(0.76, 0.8)] * 1000) is None
    assert first_alarm(trigger, [estimates(0.9, 0.8)] * 1000) is None


def test_where_the_source_model_answered_nothing_adapted_was_served() -> None:
    answered = [estimates(0.5, 0.8, answered_by="source")] * 1000
    assert first_alarm(Estimates(paired_process(0.05, 0.01, 10.0)), answered) is None
    assert first_alarm(BelowSource(0.05), answered) is None


def test_without_estimates_there_is_no_evidence() -> None:
    trigger = Estimates(paired_process(0.05, 0.01, 10.0))
    assert trigger.after(seen([1], [2]), 1) == trigger
    assert trigger.after(replace(estimates(0.1, 0.9), source_accuracy=None), 1) == trigger
    assert trigger.after(replace(estimates(0.1, 0.9), learned=False), 1) == trigger


def test_intervals_that_stay_apart_are_an_alarm_with_both_accuracies() -> None:
    stream = [estimates(0.8, 0.8)] * 7 + [estimates(0.5, 0.8)] * 9
    found = first_alarm(BelowSource(0.05), stream)
    assert found is not None
    batch, alarm = found
    assert (batch, alarm.calm) == (12, 7)
    assert "0.500" in alarm.reason
    assert "0.800" in alarm.reason


def test_intervals_that_overlap_or_part_now_and_then_are_none() -> None:
    assert first_alarm(BelowSource(0.05), [estimates(0.5, 0.8, width=0.2)] * 50) is None
    assert first_alarm(BelowSource(0.05), ([estimates(0.5, 0.8)] * 4 + [estimates(0.8, 0.8)]) * 20) is None
    assert first_alarm(BelowSource(0.05), [estimates(0.76, 0.8, width=0.001)] * 50) is None


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


def test_false_alarms_of_labels_are_at_most_delta_on_the_boundary() -> None:
    draw, delta, alarms = np.random.default_rng(11), 0.1, 0
    for _ in range(300):
        trigger = Labels(paired_process(0.05, delta, 10.0))
        for batch in range(50):
            worse, better, same = draw.multinomial(20, [0.2, 0.15, 0.65])
            trigger = trigger.after(worse, same, better, batch)
            if trigger.alarm is not None:
                alarms += 1
                break
    assert alarms / 300 <= delta


def test_labels_of_scenes_of_identical_frames_are_no_alarm() -> None:
    """Equal accuracies; the 64 frames of a batch are all right or all wrong together."""
    draw, delta, alarms = np.random.default_rng(12), 0.05, 0
    for _ in range(100):
        trigger = Labels(paired_process(0.05, delta, 10.0))
        for batch, scene in enumerate(draw.choice(3, 200, p=[0.05, 0.9, 0.05])):
            source_only, same, adapted_only = (64 * int(scene == kind) for kind in range(3))
            trigger = trigger.after(source_only, same, adapted_only, batch)
            if trigger.alarm is not None:
                alarms += 1
                break
    assert alarms / 100 <= delta


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


def test_weights_that_creep_away_are_an_alarm_and_calm_was_half_way() -> None:
    found = first_alarm(Runaway(), [seen(weights=0.02 * step) for step in range(1, 60)])
    assert found is not None
    assert (found[0], found[1].calm) == (51, 25)


def test_numbers_within_limits_are_none() -> None:
    within = [seen(weights=min(0.04 * step, 0.98), statistics=50.0) for step in range(30)]
    assert first_alarm(Runaway(), within) is None


def test_weights_that_come_back_do_not_run_away() -> None:
    assert first_alarm(Runaway(0.4), [seen(weights=0.4), seen(weights=0.0)]) is None


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


def test_calm_is_half_of_the_rehearsed_limit() -> None:
    found = first_alarm(Runaway.within(0.1), [seen(weights=0.02 * step) for step in range(1, 60)])
    assert found is not None
    assert (found[0], found[1].calm) == (21, 10)
