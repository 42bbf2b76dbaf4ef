"""Faults: bad samples, a full disk, damaged files, clocks that jump. The service answers, and says so."""

import re
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import StateError
from equipoise.production.server.errors import ClosedError, InputError, StorageError
from equipoise.production.server.served_stream import Live
from equipoise.production.server.service import Service
from tests.production.server.support import adapter, ask, batch, labels, same, service, states
from tests.support.rehearsals import trained
from tests.support.waiting import HANG


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow in the block: every write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_with_nan_are_set_aside_and_the_others_answered_as_without_them(tmp_path: Path) -> None:
    x = batch(0)
    x[2] = np.nan
    x[5, 0, 0, 0] = np.inf
    good = [0, 1, 3, 4, 6, 7]
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        for mode in ("adapted", "shadow", "hold"):
            for each in (own, other):
                ask(each, mode, batch(1))
                each.set_mode(mode, mode)
            answer = ask(own, mode, x)
            expected = ask(other, mode, x[good])
            assert [answer.classes[row] for row in (2, 5)] == [-1, -1]
            assert np.isnan(answer.probabilities[[2, 5]]).all()
            np.testing.assert_allclose(answer.probabilities[good], expected.probabilities, rtol=1e-5)
            assert own.label(mode, answer.request, labels(0)).right <= 6
            assert own.status(mode).gauges["set_aside"] == pytest.approx(2 / 16)
        assert "2 of 8 set aside" in ask(own, "adapted", x).reason
        nothing = ask(own, "adapted", np.full_like(x, np.nan))
        assert nothing.classes == [-1] * 8
        assert not nothing.learned


def test_a_new_stream_may_begin_with_nan(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        assert ask(own, "a", np.full((2, 3, 8, 8), np.nan)).classes == [-1, -1]
        assert ask(own, "a", batch(0)).learned


def test_on_a_full_disk_answers_go_on_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    with service(tmp_path / "one", save_every=2) as own, service(tmp_path / "two") as other:
        answer, theirs = ask(own, "a", batch(0)), ask(other, "a", batch(0))
        assert same(theirs, answer)
        before = own.status("a")
        with full_disk():
            for seed in range(1, 14):
                x = batch(seed)
                mine = ask(own, "a", x)
                assert mine.learned
            with pytest.raises(StorageError, match="send them again"):
                own.label("a", answer.request, labels(0))
            with pytest.raises(StorageError, match="was not written: a rollback can go to it"):
                own.snapshot("a")
            own.set_mode("a", "hold")
            status = own.status("a")
        assert status.mode == "hold"
        assert "labels" not in before.gauges or before.gauges["labels"] == 0
        assert status.gauges["labels"] == 0
        assert any(event.action == "storage" for event in status.events)
        own.set_mode("a", "adapted")
        assert own.label("a", answer.request, labels(0)).rows == 8
        assert own.snapshot("a") in own.status("a").snapshots
        for seed in range(1, 14):
            ask(other, "a", batch(seed))
        other.label("a", theirs.request, labels(0))
        assert np.array_equal(
            ask(own, "a", batch(20)).probabilities, ask(other, "a", batch(20)).probabilities
        )


def test_on_a_full_disk_a_new_stream_is_refused_for_the_disk_and_not_for_its_inputs(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        with full_disk(), pytest.raises(StorageError, match="state folder"):
            ask(own, "b", batch(0))
        assert ask(own, "a", batch(1)).learned
        assert ask(own, "b", batch(0)).learned


def test_on_a_full_disk_a_stream_is_not_evicted_and_lost(tmp_path: Path) -> None:
    with service(tmp_path / "one", resident=1) as own, service(tmp_path / "two") as other:
        for name in "ab":
            assert same(ask(own, name, batch(0)), ask(other, name, batch(0)))
        with full_disk():
            assert same(ask(own, "b", batch(1)), ask(other, "b", batch(1)))
            assert same(ask(own, "a", batch(1)), ask(other, "a", batch(1)))
        for name in "ab":
            assert same(ask(own, name, batch(2)), ask(other, name, batch(2)))


def test_a_close_that_cannot_save_says_so(tmp_path: Path) -> None:
    own = service(tmp_path)
    ask(own, "a", batch(0))
    with full_disk(), pytest.raises(StorageError, match="not written: a"):
        own.close()
    with service(tmp_path) as again:  # the folder is free
        assert again.ready


def saved_twice(folder: Path) -> Service:
    """A stream of four batches, with one state after two of them and one after four."""
    own = service(folder, save_every=2)
    for seed in range(4):
        ask(own, "a", batch(seed))
    own.close()
    return own


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_an_older_state_stands_in_for_one_that_is_damaged(tmp_path: Path) -> None:
    saved_twice(tmp_path / "one")
    assert len(states(tmp_path / "one")) == 2
    flip(states(tmp_path / "one")[-1])
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        for seed in range(2):
            ask(other, "a", batch(seed))
        assert same(ask(own, "a", batch(9)), ask(other, "a", batch(9)))
        events = own.status("a").events
        assert "an older one is used" in events[-1].reason
        assert "damaged" in events[-1].reason


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_stream_whose_states_are_all_damaged_starts_anew(tmp_path: Path, content: bytes | None) -> None:
    saved_twice(tmp_path / "one")
    for path in states(tmp_path / "one"):
        flip(path) if content is None else path.write_bytes(content)
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        mine, fresh = ask(own, "a", batch(9)), ask(other, "a", batch(9))
        assert np.array_equal(mine.probabilities, fresh.probabilities)
        assert "starts again" in own.status("a").events[-1].reason
    with service(tmp_path / "one") as again:
        assert again.status("a").batches >= 1


def in_header(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_shape_in_a_header_is_found(tmp_path: Path, damaged: int) -> None:
    saved_twice(tmp_path)
    for path in states(tmp_path)[-damaged:]:
        in_header(path, b"[3, 8, 8]", b"[3, 9, 8]")
    with service(tmp_path) as own:
        assert ask(own, "a", batch(9)).learned
        assert "cannot be read" in own.status("a").events[-1].reason
        with pytest.raises(InputError, match=r"\(3, 8, 8\)"):
            own.submit("a", np.zeros((2, 3, 9, 8), np.float32))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[3, 8, 8]", b"3        "),
        (b"[3, 8, 8]", b'"3, 8, 8"'),
        (b'\\"mode\\": \\"adapted', b'\\"mode\\": \\"adopted'),
        (b'\\"batches\\": 4', b'\\"batches\\":[]'),
        (b", true]", b"      ]"),
    ],
)
def test_a_header_of_wrong_types_harms_one_stream_only(tmp_path: Path, old: bytes, new: bytes) -> None:
    saved_twice(tmp_path)
    with service(tmp_path) as own:
        ask(own, "b", batch(0))
    in_header(next(path for path in states(tmp_path)[::-1] if "/a-" in str(path)), old, new)
    with service(tmp_path) as again:
        assert [status.mode for status in again.streams()] == ["adapted", "adapted"]
        assert all(isinstance(status.batches, int) for status in again.streams())
        assert ask(again, "b", batch(1)).learned
        assert ask(again, "a", batch(1)).learned
        assert again.status("a").batches == 3


def test_a_sample_that_the_model_cannot_take_does_not_set_the_shape_of_a_stream(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    for path in states(tmp_path):
        path.unlink()
    with service(tmp_path) as own:
        with pytest.raises(InputError):
            ask(own, "a", np.zeros((2, 1, 8, 8), np.float32))
        assert ask(own, "a", batch(0)).learned


def test_damaged_facts_of_a_service_are_refused(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    (tmp_path / "service.json").write_text("{}")
    with pytest.raises(StateError, match=r"service\.json"):
        service(tmp_path)
    (tmp_path / "service.json").unlink()
    with pytest.raises(StateError, match="whose streams"):
        service(tmp_path)


def test_files_of_others_in_the_folder_do_no_harm(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    (tmp_path / "streams" / "notes").mkdir()
    (tmp_path / "streams" / "file").write_text("hello")
    next((tmp_path / "streams").glob("a-*")).joinpath("state-x.safetensors").write_text("hello")
    with service(tmp_path) as own:
        assert [status.name for status in own.streams()] == ["a"]
        assert own.status("a").batches == 4


def test_jumps_of_the_clock_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jump = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jump[0])
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        for seed, ahead in enumerate((0.0, -1e9, 1e9, -3600.0, 1e6)):
            jump[0] = ahead
            mine = ask(own, "a", batch(seed))
            jump[0] = 0.0
            assert same(mine, ask(other, "a", batch(seed)))
        own._do(lambda: None)  # the learner has finished
        rows = own.history("a")
        assert [row["index"] for row in rows] == [1, 2, 3, 4, 5]
        assert own.streams()[0].resident


def test_a_full_disk_at_the_start_is_an_error_that_says_so(tmp_path: Path) -> None:
    own = adapter()
    with full_disk(), pytest.raises(OSError, match="service"):
        Service(own, tmp_path)
    with Service(own, tmp_path) as fine:
        assert fine.ready


def test_the_learner_goes_on_after_an_error_of_an_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.production.server.learner._TICK", 0.01)
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise RuntimeError("out of memory")

    with service(tmp_path, idle_seconds=HANG) as own:
        ask(own, "a", batch(0))
        live = own._cache.streams["a"].live
        assert live is not None
        with monkeypatch.context() as patch:
            patch.setattr(live.monitor, "state", fail)
            clock = time.monotonic
            patch.setattr(time, "monotonic", lambda: clock() + 2 * HANG)
            assert failed.wait(HANG)
        assert ask(own, "a", batch(1)).learned
        assert own.ready
        assert "out of memory" in own.status("a").events[-1].reason


def test_an_error_of_what_is_shown_leaves_a_stream_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("out of memory")

    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        for each in (own, other):
            ask(each, "a", batch(0))
        cache = own._cache
        stream = cache.streams["a"]
        own._do(lambda: cache.save(stream))
        with monkeypatch.context() as patch:
            patch.setattr(Live, "shown", fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                own._do(lambda: cache.evict(stream))
        assert same(ask(own, "a", batch(1)), ask(other, "a", batch(1)))


def test_the_learner_goes_on_after_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(own._learner, "_answer", fail)
            with pytest.raises(InputError, match="out of memory"):
                ask(own, "a", batch(1))
        assert "out of memory" in caplog.text
        assert ask(own, "a", batch(1)).learned
        assert own.ready


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_whose_learner_has_ended_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    own = service(tmp_path, latency_ms=50)
    ask(own, "a", batch(0))
    monkeypatch.setattr(own._learner, "_answer", end)
    assert ask(own, "a", batch(1)).answered_by == "source"
    own._threads[0].join(HANG)
    assert not own.ready
    with pytest.raises(ClosedError, match="stopp"):
        own.snapshot("a")
    own.close()


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ((1, 2), "expected samples of shape (3, 8, 8), as the model took before, got samples of shape (2,)"),
        ((2, 3, 8), "of shape (N, 3, 8, 8) (RuntimeError: "),
        ((3, 8, 8), "one sample needs brackets around it, as a batch of one"),
    ],
)
@pytest.mark.parametrize("learned_from", ["statistics", "a request"])
def test_inputs_of_a_wrong_shape_are_told_what_the_model_takes(
    tmp_path: Path, came: tuple[int, ...], said: str, learned_from: str
) -> None:
    images = torch.cat([torch.from_numpy(batch(seed, 50)) for seed in range(6)])
    measured = eq.SourceStatistics.measure(trained(), images.split(50), progress=False)
    enough = measured if learned_from == "statistics" else replace(measured, inputs={})
    with service(tmp_path, adapter=eq.create("tent", trained(), enough)) as own:
        if learned_from == "a request":
            ask(own, "another", batch(0))
        with pytest.raises(InputError, match=re.escape(said)):
            ask(own, "a", np.zeros(came))
        assert "a" not in {status.name for status in own.streams()}
        assert own.submit("a", batch(0)).result(timeout=60).classes
        with pytest.raises(InputError, match=re.escape("of shape (N, 3, 8, 8)")):  # one that is known by now
            ask(own, "a", np.zeros(came))
        with pytest.raises(InputError, match="one sample needs brackets"):
            ask(own, "a", np.zeros(3))


def test_out_of_memory_is_not_told_as_a_wrong_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        monkeypatch.setattr(own._learner._source, "_source", fail)
        with pytest.raises(InputError, match="cannot answer these inputs: OutOfMemoryError: out of memory"):
            ask(own, "b", np.zeros((2, 3, 9, 9), np.float32))


def test_before_a_shape_is_known_the_one_that_came_is_told(tmp_path: Path) -> None:
    said = re.escape("got samples of shape (2,) in inputs of shape (1, 2)")
    with (
        service(tmp_path, adapter=eq.create("tent", trained())) as own,
        pytest.raises(InputError, match=said),
    ):
        ask(own, "a", np.zeros((1, 2)))
