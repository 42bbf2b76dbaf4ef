"""The log of a guarded stream, and its decisions again."""

import json
import time
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.errors import OptionError, StateError
from equipoise.production.guard.log import Log
from tests.production.guard.streams import adapter, clean, full_disk
from tests.support.rehearsals import CLASSES


def stream(guarded: eq.Guarded, batches: int = 30) -> None:
    """A stream with actions of every kind."""
    for number, (x, y) in enumerate(clean(batches), 1):
        guarded(x)
        if number == 3:
            guarded.hold("look at it")
        if number == 5:
            guarded.release()
            guarded.snapshot()
        if number == 6:
            guarded.rollback()
        if number == 7:
            wrong = torch.nn.functional.one_hot((y + 1) % CLASSES, CLASSES).float()
            guarded.label(y, logits=wrong, source_logits=torch.nn.functional.one_hot(y, CLASSES).float())
        if number == 8:
            guarded.reset("why not")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    guarded = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=4, log=path)
    stream(guarded)
    assert {event.action for event in guarded.events} == {"hold", "release", "snapshot", "rollback", "reset"}
    assert {"request", "runaway", "cool-down"} <= {event.trigger for event in guarded.events}
    assert eq.replay(path) == list(guarded.events)
    return path


def test_the_log_reproduces_every_event_from_a_path_or_from_lines(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 30 + 6
    assert eq.replay(lines) == eq.replay(str(log))


def test_a_log_of_an_earlier_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written = Log(path)
    written.write({"kind": "equipoise guard log", "version": 2, "options": {}, "state": {}})
    with pytest.raises(StateError, match="expected version 3 of a log, got 2"):
        eq.replay(path)


def test_a_log_goes_on_after_a_break(log: Path) -> None:
    before = eq.replay(log)
    again = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=4, log=log)
    stream(again, 10)
    assert eq.replay(log) == [*before, *again.events]


def test_the_state_taken_over_is_in_the_log(log: Path) -> None:
    events = eq.replay(log)
    first = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=4)
    stream(first, 10)
    second = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=4, log=log)
    second.load(first.state())
    stream(second, 10)
    assert eq.replay(log) == [*events, *second.events[len(first.events) :]]


def test_every_changed_line_is_found(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    for place in range(0, len(lines), 5):
        values = json.loads(lines[place])
        values["version" if "version" in values else "decision"] = 7
        changed = [*lines[:place], json.dumps(values) + "\n", *lines[place + 1 :]]
        with pytest.raises(StateError, match=f"line {place + 1} "):
            eq.replay(changed)


def test_a_removed_or_damaged_line_is_found(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    damaged = {
        "missing": [*lines[:4], *lines[5:]],
        "no header": lines[1:],
        "line 5 of the log is damaged": [*lines[:4], lines[4][:20] + "\n", *lines[5:]],
    }
    for words, changed in damaged.items():
        with pytest.raises(StateError, match=words):
            eq.replay(changed)


def test_lines_removed_from_the_end_of_a_part_are_found_once_another_part_follows(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    eq.replay(lines[:-4])  # they cannot be known
    eq.Guarded(adapter("tent"), log=log)
    whole = log.read_text().splitlines(keepends=True)
    assert len(eq.replay(whole)) > 0
    with pytest.raises(StateError, match="missing"):
        eq.replay([*lines[:-4], *whole[len(lines) :]])


def test_a_decision_that_does_not_follow_is_found(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is sound, of a guard with another limit."""
    monkeypatch.setattr("equipoise.production.guard.triggers.LARGEST_STEP", 10.0)
    with pytest.raises(StateError, match="expected the decision None"):
        eq.replay(log)


def test_a_line_torn_by_kill_9_is_left_out_and_cut_off_when_the_log_goes_on(log: Path) -> None:
    events = eq.replay(log)
    with log.open("a") as file:
        file.write('{"observation": {"samp')
    assert eq.replay(log) == events
    eq.Guarded(adapter("tent"), log=log)(clean(1)[0][0])
    assert eq.replay(log) == events
    assert "samp\n" not in log.read_text()


def test_a_full_disk_stops_the_log_and_the_snapshots_and_answers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    guarded = eq.Guarded(adapter("tent"), folder=tmp_path / "snapshots", every=2, log=path)
    guarded(clean(1)[0][0])

    with full_disk(monkeypatch):
        for x, _ in clean(4):
            assert guarded(x).isfinite().all()
    assert "logging has stopped" in guarded.status()
    assert "snapshots are in memory only" in guarded.status()
    assert len(guarded.snapshots) == 2
    guarded.rollback()
    assert eq.replay(path) == []


def test_clock_jumps_change_nothing_but_the_time_of_events(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: float((-1) ** (tick := next(ticks)) * 10**9 * tick))
    path = tmp_path / "jumps"
    guarded = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=4, log=path)
    stream(guarded)
    monkeypatch.undo()
    assert eq.replay(path) == list(guarded.events)
    plain = [(e.batch, e.action, e.trigger, e.reason) for e in eq.replay(log)]
    assert [(e.batch, e.action, e.trigger, e.reason) for e in guarded.events] == plain
    assert any(event.time < 0 for event in guarded.events)


@pytest.mark.parametrize("text", ["line 1\na last line without its end", "x" * 5000, '{"kind": "other"}\n'])
def test_a_file_that_is_no_log_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"notes\.txt"):
        eq.Guarded(adapter("tent"), log=path)
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", '{"ki', '{"kind": "equipoise guard log", "ver'])
def test_an_empty_file_or_a_torn_header_becomes_a_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    eq.Guarded(adapter("tent"), log=path)
    assert len(path.read_text().splitlines()) == 1
    assert eq.replay(path) == []


def test_a_file_of_bytes_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StateError, match="expected a log of a guard"):
        eq.replay(path)
