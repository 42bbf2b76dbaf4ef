"""What a monitor remembers: the rows of the curves, the frame, and a state that is resumed exactly."""

import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.errors import MissingExtraError, StateError
from equipoise.files import read_tensors, write_tensors
from tests.production.monitor.streams import CLASSES, Batch, batches, bits, probabilities

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


def test_a_row_for_each_sample_with_plain_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 86_400.5)
    made = batches([4, 6, 5])
    monitor = eq.Monitor(window=10, keep=12, stream="camera")
    for index, batch in enumerate(made):
        monitor.observe(batch.logits, batch.step, request=None if index == 1 else str(index))
    monitor.label("2", made[2].labels)
    frame = monitor.frame()
    logits = torch.cat([b.logits for b in made])[-12:]
    p = probabilities(logits)
    assert len(frame) == 12
    assert frame["timestamp"].dtype.kind == "M"
    assert (frame["timestamp"] == pd.Timestamp("1970-01-02T00:00:00.5Z")).all()
    assert (frame["stream"] == "camera").all()
    assert frame["request"].isna().tolist() == [True] * 7 + [False] * 5
    assert frame["prediction"].tolist() == p.argmax(1).tolist()
    assert np.allclose(frame["confidence"], p.max(1), atol=1e-6)
    assert np.allclose(frame["entropy"], bits(p), atol=1e-5)
    assert np.allclose(frame[[f"probability_{k}" for k in range(CLASSES)]], p, atol=1e-6)
    assert frame["target"].isna().tolist() == [True] * 7 + [False] * 5
    assert frame["target"][7:].tolist() == made[2].labels.tolist()
    source = made[2].step.source_logits
    assert source is not None
    assert frame["source_prediction"][7:].tolist() == source.argmax(1).tolist()


def test_a_row_without_an_answer_has_no_class() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]]), None)
    assert monitor.frame()["prediction"].isna().tolist() == [True, False]


def test_a_monitor_of_nothing_has_an_empty_frame() -> None:
    assert len(eq.Monitor().frame()) == 0


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"equipoise\[bench\]"):
        eq.Monitor().frame()


SIZES = [7, 30, 1, 22, 40, 13, 9, 18]


def feed(monitor: eq.Monitor, made: list[Batch], first: int) -> None:
    for index, batch in enumerate(made, first):
        events = [SimpleNamespace(action="hold")] if index % 3 == 0 else []
        monitor.observe(batch.logits, batch.step, request=str(index), events=events)
        if index % 2:
            monitor.label(str(index), batch.labels)
        if index == 3:  # of a request that it was not shown
            monitor.label("lost", batch.labels, logits=batch.logits)


def through_a_file(state: dict[str, Any], path: Path) -> dict[str, Any]:
    write_tensors(path, "test", 1, state["tensors"], {"numbers": json.dumps(state["numbers"])})
    tensors, text = read_tensors(path, "test", 1)
    return {"numbers": json.loads(text["numbers"]), "tensors": tensors}


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_resume_is_exact(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 7.0)
    made = batches(SIZES)
    options: dict[str, Any] = {"window": 25, "keep": 60}
    through, first = eq.Monitor(**options), eq.Monitor(**options)
    feed(through, made, 0)
    feed(first, made[:cut], 0)
    resumed = eq.Monitor(**options)
    resumed.load(through_a_file(first.state(), tmp_path / "monitor"))
    assert (resumed.gauges(), resumed.totals(), resumed.rows()) == (
        first.gauges(),
        first.totals(),
        first.rows(),
    )
    feed(resumed, made[cut:], cut)
    resumed.label("6", made[6].labels)
    through.label("6", made[6].labels)
    assert resumed.gauges() == through.gauges()
    assert resumed.totals() == through.totals()
    assert resumed.rows() == through.rows()
    assert resumed.frame().equals(through.frame())


def test_a_state_is_a_copy() -> None:
    made = batches(SIZES)
    monitor, other = eq.Monitor(), eq.Monitor()
    feed(monitor, made[:4], 0)
    state = monitor.state()
    before = monitor.totals()
    feed(monitor, made[4:], 4)
    other.load(state)
    feed(other, made[4:], 4)
    assert other.totals() == monitor.totals()
    third = eq.Monitor()
    third.load(state)
    assert third.totals() == before


def test_another_state_is_refused_and_nothing_changes() -> None:
    monitor = eq.Monitor()
    feed(monitor, batches(SIZES), 0)
    before, state = monitor.totals(), monitor.state()
    wrong: list[Any] = [
        {},
        None,
        {"numbers": {}, "tensors": {}},
        {**state, "tensors": {}},
        {**state, "numbers": {**state["numbers"], "window": 3}},
        {**state, "numbers": {**state["numbers"], "version": 2}},
        {**state, "numbers": {**state["numbers"], "classes": 7}},
        {**state, "tensors": {**state["tensors"], "rows.label": torch.zeros(2)}},
        {**state, "tensors": {**state["tensors"], "truth.bins": torch.zeros(2)}},
        {**state, "numbers": {**state["numbers"], "totals": {"samples": 1}}},
    ]
    for each in wrong:
        with pytest.raises(StateError):
            monitor.load(each)
        assert monitor.totals() == before
