"""A monitor that is stopped and resumed goes on exactly."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import StateError
from equipoise.files import read_tensors, write_tensors
from tests.production.monitor.streams import Batch, batches

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
