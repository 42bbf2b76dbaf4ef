"""The rows of the page's curves."""

import numpy as np
import pytest
import torch

import equipoise as eq
from tests.production.monitor.streams import CLASSES, batches, probabilities

KEYS = {
    "index",
    "time",
    "samples",
    "accuracy",
    "low",
    "high",
    "inside",
    "source_accuracy",
    "confidence",
    "temperature",
    "entropy",
    "agreement",
    "histogram",
}


def test_a_row_follows_each_batch_and_is_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batches([10, 20, 15])
    monitor = eq.Monitor(window=30)
    for index, batch in enumerate(made):
        monkeypatch.setattr("time.time", lambda now=1000.0 + index: now)
        monitor.observe(batch.logits, batch.step)
    rows = monitor.rows()
    assert [row.keys() for row in rows] == [KEYS] * 3
    assert [(row["index"], row["samples"], row["time"]) for row in rows] == [
        (1, 10, 1000.0),
        (2, 30, 1001.0),
        (3, 45, 1002.0),
    ]
    last, estimate = rows[-1], made[-1].step.accuracy
    p = probabilities(torch.cat([b.logits for b in made])[-30:])
    assert estimate is not None
    assert (last["accuracy"], last["low"], last["high"]) == (estimate.value, estimate.low, estimate.high)
    assert [row["inside"] for row in rows] == [False, True, True]
    assert last["source_accuracy"] == pytest.approx(estimate.value - 0.2)
    assert last["confidence"] == pytest.approx(p.max(1).mean(), abs=1e-6)
    assert last["histogram"] == pytest.approx(list(np.bincount(p.argmax(1), minlength=CLASSES) / 30))
    assert monitor.rows(since=2) == rows[2:]
    assert monitor.rows(since=3) == []


def test_missing_numbers_are_none() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.full((2, 3), torch.nan), None)
    (row,) = monitor.rows()
    names = KEYS - {"index", "time", "samples"}
    assert {name: row[name] for name in names} == dict.fromkeys(names)
    assert isinstance(row["index"], int)


def test_an_empty_batch_adds_no_row() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.zeros(0, 3), None)
    assert monitor.rows() == []
    assert eq.Monitor().rows() == []


def test_older_rows_are_thinned_and_the_newest_are_all_there() -> None:
    monitor = eq.Monitor(window=1, keep=1)
    for _ in range(1400):
        monitor.observe(torch.zeros(1, 2), None)
    indices = [row["index"] for row in monitor.rows()]
    assert len(indices) <= 512
    assert indices == sorted(set(indices))
    assert indices[0] == 1
    assert indices[-200:] == list(range(1201, 1401))
    steps = np.diff(indices)
    assert (np.diff(steps) <= 0).all()  # sparser the older


def test_a_clock_that_jumps_back_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = eq.Monitor()
    for now in (1000.0, 10.0, 2000.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        monitor.observe(torch.zeros(1, 2), None)
    assert [row["index"] for row in monitor.rows()] == [1, 2, 3]
    assert [row["time"] for row in monitor.rows(1)] == [10.0, 2000.0]
