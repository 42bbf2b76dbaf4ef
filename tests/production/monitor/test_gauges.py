"""Gauges against formulas written out in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import BatchError, BatchTypeError, OptionError
from tests.production.monitor.streams import CLASSES, batches, bits, probabilities, step, watched

SIZES = [7, 30, 1, 22, 40, 13]


def test_the_gauges_of_a_window_are_those_of_its_last_samples() -> None:
    made = batches(SIZES)
    gauges = watched(made, window=50, keep=60).gauges()
    logits = torch.cat([b.logits for b in made])[-50:]
    source = torch.cat([b.step.source_logits for b in made if b.step.source_logits is not None])[-50:]
    p = probabilities(logits)
    shares = np.bincount(p.argmax(1), minlength=CLASSES) / 50
    temperatures = np.repeat([b.step.temperature for b in made], SIZES)[-50:]
    last = made[-1].step.accuracy
    assert last is not None
    expected = {
        "samples": 50,
        "set_aside": 0,
        "confidence": p.max(1).mean(),
        "entropy": bits(p).mean(),
        "top_class_share": shares.max(),
        "agreement": float((logits.argmax(1) == source.argmax(1)).double().mean()),
        "temperature": temperatures.mean(),
        "accuracy": last.value,
        "accuracy_low": last.low,
        "accuracy_high": last.high,
        "accuracy_inside": 1.0,
        "source_accuracy": last.value - 0.2,
        "calibration_gap": p.max(1).mean() - last.value,
        **{f"class_share_{index}": share for index, share in enumerate(shares)},
        "class_shift": gauges["class_shift"],  # below
        "labels": 0,
        "labels_seen": 0,
    }
    assert gauges == pytest.approx(expected, abs=1e-6)


def test_the_totals_are_means_over_all_samples() -> None:
    made = batches(SIZES)
    totals = watched(made, window=10, keep=20).totals()
    p = probabilities(torch.cat([b.logits for b in made]))
    values = np.repeat([b.step.accuracy.value for b in made if b.step.accuracy], SIZES)
    inside = np.repeat([b.step.accuracy.inside for b in made if b.step.accuracy], SIZES)
    assert totals["samples"] == sum(SIZES)
    assert totals["batches"] == len(SIZES)
    assert totals["confidence"] == pytest.approx(p.max(1).mean(), abs=1e-6)
    assert totals["entropy"] == pytest.approx(bits(p).mean(), abs=1e-6)
    assert totals["accuracy"] == pytest.approx(values.mean())
    assert totals["accuracy_low"] == pytest.approx(values.mean() - 0.1)
    assert totals["accuracy_high"] == pytest.approx(values.mean() + 0.1)
    assert totals["accuracy_inside"] == pytest.approx(inside.mean())
    assert totals["calibration_gap"] == pytest.approx(p.max(1).mean() - values.mean(), abs=1e-6)


def test_classes_are_compared_with_those_of_the_start() -> None:
    made = batches([10, 10, 10, 10])
    monitor = eq.Monitor(window=20)
    for number, batch in enumerate(made):
        assert ("class_shift" in monitor.gauges()) == (number >= 2)  # the start is a window
        monitor.observe(batch.logits, None)
    classes = torch.cat([b.logits for b in made]).argmax(1).numpy()
    start, recent = (np.bincount(part, minlength=CLASSES) / 20 for part in (classes[:20], classes[20:]))
    assert monitor.gauges()["class_shift"] == pytest.approx(np.abs(start - recent).sum() / 2)


def test_a_stream_of_one_class_is_far_from_its_start() -> None:
    monitor = watched(batches([100]), window=50)
    before = monitor.gauges()["class_shift"]
    monitor.observe(torch.eye(CLASSES)[[2] * 50], None)
    assert monitor.gauges()["top_class_share"] == 1
    assert monitor.gauges()["class_shift"] > before + 0.5


def test_rows_without_an_answer_are_set_aside_and_count_for_nothing_else() -> None:
    (batch,) = batches([20])
    spoiled = batch.logits.clone()
    spoiled[3], spoiled[7, 1], spoiled[9, 0] = torch.nan, torch.nan, torch.inf
    monitor, alone = eq.Monitor(window=20), eq.Monitor(window=20)
    monitor.observe(spoiled, batch.step)
    good = [row for row in range(20) if row not in (3, 7, 9)]
    source = batch.step.source_logits
    assert source is not None
    alone.observe(batch.logits[good], step(17, value=0.5, source_logits=source[good]))
    for name in ("confidence", "entropy", "agreement", "class_share_1"):
        assert monitor.gauges()[name] == pytest.approx(alone.gauges()[name])
    assert monitor.gauges()["set_aside"] == pytest.approx(3 / 20)


def test_a_class_of_no_probability_has_no_entropy() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.tensor([[0.0, 0.0, -torch.inf]]), None)
    assert monitor.gauges()["entropy"] == pytest.approx(1)
    assert monitor.gauges()["set_aside"] == 0


def test_a_batch_without_any_answer_leaves_the_others_as_they_are() -> None:
    monitor = watched(batches([10]), window=10)
    before = monitor.gauges()["confidence"]
    monitor.observe(torch.full((4, CLASSES), torch.nan), None)
    assert monitor.gauges()["set_aside"] == pytest.approx(0.4)
    assert np.isfinite(list(monitor.gauges().values())).all()
    assert monitor.gauges()["confidence"] != before  # six of ten are left
    everything = eq.Monitor()
    everything.observe(torch.full((4, CLASSES), torch.nan), None)
    assert everything.gauges() == {"samples": 4, "set_aside": 1, "labels": 0, "labels_seen": 0}


def test_without_a_record_there_are_no_estimates() -> None:
    monitor = eq.Monitor()
    monitor.observe(batches([8])[0].logits, None)
    assert not {"accuracy", "temperature", "agreement", "calibration_gap"} & monitor.gauges().keys()
    assert eq.Monitor().gauges() == {"samples": 0, "labels": 0, "labels_seen": 0}
    assert eq.Monitor().totals()["samples"] == 0


def test_half_precision_and_gradients_are_taken() -> None:
    logits = batches([8])[0].logits
    monitor, half = eq.Monitor(), eq.Monitor()
    monitor.observe(logits.requires_grad_(), None)
    half.observe(logits.bfloat16(), None)
    assert half.gauges()["confidence"] == pytest.approx(monitor.gauges()["confidence"], abs=1e-2)


def test_the_logits_that_were_given_are_not_changed() -> None:
    logits = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
    before = logits.clone()
    eq.Monitor().observe(logits, None)
    assert torch.allclose(logits, before, equal_nan=True)


def test_many_classes_have_one_gauge() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.randn(4, 101), None)
    assert not [name for name in monitor.gauges() if name.startswith("class_share")]
    assert "top_class_share" in monitor.gauges()


def test_events_are_counted_by_action_while_they_are_in_the_window() -> None:
    class Event:
        def __init__(self, action: str) -> None:
            self.action = action

    made = batches([10] * 4)
    monitor = eq.Monitor(window=20)
    monitor.observe(made[0].logits, None, events=[Event("hold"), Event("hold"), Event("reset")])
    assert monitor.gauges()["events_hold"] == 2
    monitor.observe(made[1].logits, None, events=[Event("release")])
    monitor.observe(made[2].logits, None)
    assert "events_hold" not in monitor.gauges()
    assert monitor.gauges()["events_release"] == 1
    assert [monitor.totals()[f"events_{a}"] for a in ("hold", "reset", "release")] == [2, 1, 1]


def test_wrong_arguments_are_refused_and_change_nothing() -> None:
    monitor = watched(batches([4]))
    before = monitor.totals()
    rows: Any = [[0.0]]
    with pytest.raises(BatchTypeError, match="tensor"):
        monitor.observe(rows, None)
    with pytest.raises(BatchError, match=r"\(N, C\)"):
        monitor.observe(torch.zeros(3), None)
    with pytest.raises(OptionError, match="5 classes"):
        monitor.observe(torch.zeros(3, 4), None)
    with pytest.raises(OptionError, match="3 rows"):
        monitor.observe(torch.zeros(3, CLASSES), None, request={"a": 1, "b": 1})
    with pytest.raises(OptionError, match="adapter"):
        monitor(torch.zeros(3, CLASSES))
    assert monitor.totals() == before
    windows: list[Any] = [0, True, 2.5]
    for wrong in windows:
        with pytest.raises(OptionError, match="window"):
            eq.Monitor(window=wrong)
    with pytest.raises(OptionError, match="keep"):
        eq.Monitor(window=100, keep=50)
    with pytest.raises(OptionError, match="expected an adapter, or a guarded one, got Linear"):
        eq.Monitor(torch.nn.Linear(2, 2))
