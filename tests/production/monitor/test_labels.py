"""Labels that come late, out of order, twice, or for requests that nobody knows."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.errors import ForgottenRequestError, OptionError
from tests.production.monitor.streams import (
    CLASSES,
    Batch,
    batches,
    calibration_error,
    probabilities,
    step,
    watched,
    wilson,
)

SIZES = [7, 30, 1, 22, 40]


def joined(made: list[Batch]) -> tuple[Tensor, Tensor]:
    return torch.cat([b.logits for b in made]), torch.cat([b.labels for b in made])


def check_truth(gauges: dict[str, float], logits: Tensor, labels: Tensor) -> None:
    p, y = probabilities(logits), labels.numpy()
    right = int((p.argmax(1) == y).sum())
    surprise = -np.log(p[np.arange(len(y)), y])
    half = 1.6448536269514722 * surprise.std(ddof=1) / np.sqrt(len(y))
    assert gauges["labels"] == len(y)
    assert gauges["true_accuracy"] == pytest.approx(right / len(y))
    assert (gauges["true_accuracy_low"], gauges["true_accuracy_high"]) == pytest.approx(wilson(right, len(y)))
    assert gauges["ece"] == pytest.approx(calibration_error(p, y), abs=1e-6)
    assert 0 <= gauges["ece_low"] <= gauges["ece"] <= gauges["ece_high"] <= 1
    assert gauges["nll"] == pytest.approx(surprise.mean(), abs=1e-6)
    assert gauges["nll_low"] == pytest.approx(surprise.mean() - half, abs=1e-6)
    assert gauges["nll_high"] == pytest.approx(surprise.mean() + half, abs=1e-6)


@pytest.mark.parametrize("order", [range(5), [4, 2, 0, 1, 3]])
def test_labels_turn_estimates_into_truth_in_any_order(order: list[int]) -> None:
    made = batches(SIZES)
    monitor = watched(made, window=100)
    for index in order:
        right = monitor.label(str(index), made[index].labels)
        assert right == int((made[index].logits.argmax(1) == made[index].labels).sum())
    logits, labels = joined(made)
    check_truth(monitor.gauges(), logits, labels)
    check_truth(monitor.totals(), logits, labels)


def test_the_window_is_the_last_samples_that_have_labels() -> None:
    made = batches(SIZES)
    monitor = watched(made, window=25)
    monitor.label("3", made[3].labels.tolist())
    monitor.label("0", made[0].labels)
    logits, labels = joined([made[0], made[3]])
    check_truth(monitor.gauges(), logits[-25:], labels[-25:])
    check_truth(monitor.totals(), logits, labels)


def test_truth_is_compared_with_the_estimates_of_the_same_samples() -> None:
    made = batches(SIZES)
    monitor = watched(made)
    for index in (1, 3):
        monitor.label(str(index), made[index].labels)
    values = [made[index].step.accuracy for index in (1, 3)]
    estimate = sum(30 * v.value if k == 0 else 22 * v.value for k, v in enumerate(values) if v) / 52
    gauges = monitor.gauges()
    assert gauges["estimate_error"] == pytest.approx(estimate - gauges["true_accuracy"])


def test_totals_remember_labels_of_forgotten_samples() -> None:
    made = batches([10] * 12)
    monitor = eq.Monitor(window=20, keep=35)
    for index, batch in enumerate(made):
        monitor.observe(batch.logits, batch.step, request=str(index))
        monitor.label(str(index), batch.labels)
    check_truth(monitor.totals(), *joined(made))
    check_truth(monitor.gauges(), *joined(made[-2:]))
    assert monitor.gauges()["labels_seen"] == 120


def test_unknown_and_forgotten_requests_are_refused_by_name() -> None:
    made = batches([10] * 6)
    monitor = watched(made, window=20, keep=35)
    for name in ("0", "1", "2", "never"):  # 2 has lost half of its rows
        with pytest.raises(ForgottenRequestError, match=f"35 samples, got '{name}'") as caught:
            monitor.label(name, made[0].labels)
        assert isinstance(caught.value, eq.EquipoiseError | LookupError)
    monitor.label("3", made[3].labels)
    assert monitor.totals()["labels"] == 10
    with pytest.raises(ForgottenRequestError):
        eq.Monitor().label("0", [1])


def test_labels_of_forgotten_requests_count_with_the_logits_of_their_answers() -> None:
    made = batches([10] * 6)
    monitor = watched(made, window=25, keep=25)
    right = [int((each.logits.argmax(1) == each.labels).sum()) for each in made]
    for index in (2, 0, 5, 1):
        found = monitor.label(str(index), made[index].labels, logits=made[index].logits)
        assert found == right[index]
    check_truth(monitor.totals(), *joined([made[index] for index in (0, 1, 2, 5)]))
    assert monitor.gauges()["labels_seen"] == 40
    tail = [made[index] for index in (2, 0, 1, 5)]  # in the order of their labels, then those remembered
    logits, labels = joined(tail)
    check_truth(monitor.gauges(), logits[-25:], labels[-25:])
    assert monitor.gauges()["samples"] == 25
    with pytest.raises(OptionError, match="expected logits of 5 classes as before, got 4"):
        monitor.label("0", made[0].labels, logits=made[0].logits[:, :4])
    with pytest.raises(OptionError, match="expected 10 labels"):
        monitor.label("0", made[1].labels[:9], logits=made[0].logits)
    assert monitor.totals()["labels"] == 40


def test_labels_that_do_not_fit_are_refused_and_change_nothing() -> None:
    monitor = watched(batches([3]))
    monitor.label("0", [0, 1, 2])
    before = monitor.totals()
    wrong: list[tuple[Any, str]] = [
        ([0, 1], "3 labels"),
        ([0, 1, 5], r"0\.\.4"),
        ([0, -1, 1], r"0\.\.4"),
        ([0.0, 1.0, 2.0], "whole numbers"),
        ([True, False, True], "whole numbers"),
        ("abc", "whole numbers"),
        (None, "whole numbers"),
    ]
    for labels, words in wrong:
        with pytest.raises(OptionError, match=words):
            monitor.label("0", labels)
    assert monitor.totals() == before


def test_rows_without_an_answer_are_neither_right_nor_wrong() -> None:
    (batch,) = batches([6])
    spoiled = batch.logits.clone()
    spoiled[2] = torch.nan
    monitor = eq.Monitor()
    monitor.observe(spoiled, batch.step, request="a")
    right = monitor.label("a", spoiled.nan_to_num().argmax(1))
    kept = [0, 1, 3, 4, 5]
    assert right == 5
    check_truth(monitor.gauges(), batch.logits[kept], batch.logits[kept].argmax(1))


def test_a_batch_may_join_several_requests() -> None:
    (batch,) = batches([9])
    monitor = eq.Monitor()
    monitor.observe(batch.logits, None, request={"a": 2, "b": 4, "c": 3})
    monitor.label("b", batch.labels[2:6])
    check_truth(monitor.gauges(), batch.logits[2:6], batch.labels[2:6])


def test_an_id_that_comes_again_stands_for_the_newer_request_and_labels_for_the_newer_ones() -> None:
    first, second = batches([4, 6])
    monitor = eq.Monitor()
    monitor.observe(first.logits, None, request="a")
    monitor.observe(second.logits, None, request="a")
    for labels in ((second.labels + 1) % CLASSES, second.labels, second.labels):
        monitor.label("a", labels)
    check_truth(monitor.gauges(), second.logits, second.labels)
    assert monitor.gauges()["labels_seen"] == 6
    check_truth(monitor.totals(), second.logits, second.labels)


def test_a_batch_larger_than_the_memory_is_forgotten_in_part() -> None:
    (batch,) = batches([50])
    monitor = eq.Monitor(window=10, keep=20)
    monitor.observe(batch.logits, None, request={"a": 30, "b": 20})
    monitor.label("b", batch.labels[30:])
    check_truth(monitor.totals(), batch.logits[30:], batch.labels[30:])
    with pytest.raises(ForgottenRequestError):
        monitor.label("a", batch.labels[:30])
    assert monitor.totals()["samples"] == 50


def test_memory_stays_bounded() -> None:
    monitor = eq.Monitor(window=10, keep=100)
    for index in range(600):
        monitor.observe(torch.zeros(1, CLASSES), step(1), request=str(index))
    held = monitor._recent
    assert held is not None
    assert len(held.rows) == 100
    assert len(held._block) <= 126
    assert len(monitor.state()["numbers"]["requests"]) == 100


def test_a_guard_gets_the_labels_with_both_answers_once() -> None:
    class Guarded:
        last = None
        events = ()
        got: list[tuple[Tensor, Tensor, Tensor]]

        def __init__(self) -> None:
            self.got = []

        def label(self, target: Tensor, *, logits: Tensor, source_logits: Tensor) -> None:
            self.got.append((target, logits, source_logits))

    guarded = Guarded()
    (batch,) = batches([6])
    source = batch.step.source_logits
    assert source is not None
    monitor = eq.Monitor(guarded)
    monitor.observe(batch.logits, batch.step, request="a")
    monitor.label("a", batch.labels)
    monitor.label("a", batch.labels)
    ((target, logits, source_logits),) = guarded.got
    assert target.equal(batch.labels)
    assert logits.equal(batch.logits)
    assert source_logits.argmax(1).equal(source.argmax(1))
