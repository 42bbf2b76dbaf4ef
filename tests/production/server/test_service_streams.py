"""A service answers each stream as an adapter of its own would, and goes on after a restart bit for bit."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.production.guard.guarded import Guarded
from equipoise.production.server.errors import StorageError, TooManyStreamsError, UnknownStreamError
from equipoise.production.server.interface import ServiceLike, StreamStatus
from equipoise.production.server.limits import Limits
from equipoise.production.server.routes.metrics import StreamsCollector
from equipoise.production.server.service import Service, ServiceFromFactory
from tests.production.server.support import (
    PATIENT,
    adapter,
    ask,
    batch,
    labels,
    probabilities,
    same,
    service,
    states,
)
from tests.support.rehearsals import held_out, trained
from tests.support.waiting import HANG, wait_until


def test_streams_are_answered_as_by_adapters_of_their_own(tmp_path: Path) -> None:
    apart = {name: Guarded(adapter()) for name in "ab"}
    with service(tmp_path) as shared:
        for seed in range(12):
            for shift, name in enumerate("ab"):
                x = batch(seed, shift=shift)
                answer = ask(shared, name, x)
                expected = probabilities(apart[name](torch.from_numpy(x)))
                np.testing.assert_array_equal(answer.probabilities, expected)
                assert answer.classes == expected.argmax(1).tolist()
                assert answer.learned
                assert answer.mode == "adapted"
                assert answer.stream == name
                last = apart[name].last
                assert last is not None
                assert (answer.accuracy, answer.temperature) == (last.accuracy, last.temperature)


@pytest.mark.parametrize("method", ["poise", "tent"])
def test_a_restart_goes_on_bit_for_bit(tmp_path: Path, method: str) -> None:
    through = service(tmp_path / "one", adapter=adapter(method))
    stopped = service(tmp_path / "two", adapter=adapter(method))
    for half in range(2):
        for seed in range(half * 7, half * 7 + 7):
            for name in ("a", "b"):
                answers = [ask(each, name, batch(seed)) for each in (through, stopped)]
                assert same(*answers)
                if seed % 2:
                    for each, answer in zip((through, stopped), answers, strict=True):
                        each.label(name, answer.request, labels(seed))
        if not half:
            stopped.close()
            stopped = service(tmp_path / "two", adapter=adapter(method))
    one, two = through.status("b"), stopped.status("b")
    assert one.gauges == two.gauges
    assert (one.guard, one.snapshots, one.batches, one.samples) == (
        two.guard,
        two.snapshots,
        two.batches,
        two.samples,
    )
    assert _without_time(through.history("b")) == _without_time(stopped.history("b"))
    through.close()
    stopped.close()


def _without_time(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def test_an_evicted_stream_returns_bit_for_bit(tmp_path: Path) -> None:
    with service(tmp_path / "one") as held, service(tmp_path / "two", resident=1) as evicting:
        for seed in range(6):
            for name in "abc":
                assert same(*(ask(each, name, batch(seed)) for each in (held, evicting)))
        assert [status.resident for status in evicting.streams()] == [False, False, True]
        assert [status.resident for status in held.streams()] == [True, True, True]
        assert evicting.status("a").gauges == held.status("a").gauges


def exposed(streams: Sequence[StreamStatus]) -> set[tuple[str, ...]]:
    """The metrics of single streams."""
    service = SimpleNamespace(streams=lambda: streams, method="poise")
    found = StreamsCollector(cast("ServiceLike", service)).collect()
    samples = [sample for family in found for sample in family.samples]
    return {(s.name, *s.labels.values(), str(s.value)) for s in samples if "stream" in s.labels}


def test_after_a_restart_streams_are_shown_as_they_were(tmp_path: Path) -> None:
    with service(tmp_path) as first:
        for seed in range(12):
            ask(first, "a", batch(seed, shift=2.0))
        answer = ask(first, "b", batch(0))
        first.label("b", answer.request, labels(0))
        first.set_mode("b", "hold")
        first.reset("a")
        before = first.streams()
    assert before[0].events
    assert before[0].snapshots
    assert "true_accuracy" in before[1].gauges
    with service(tmp_path) as again:
        shown = again.streams()
        assert shown == [replace(status, resident=False) for status in before]
        assert exposed(shown) == exposed(before)
        assert [again.status(status.name) for status in shown] == shown  # read whole, with its checksum
        ask(again, "a", batch(0))
        assert [status.resident for status in again.streams()] == [True, False]
        assert again.streams()[1] == shown[1]


def test_as_many_streams_on_disk_are_remembered_as_may_be_in_memory(tmp_path: Path) -> None:
    def known(own: Service) -> list[str]:
        return [status.name for status in own.streams() if status.gauges and not status.resident]

    with service(tmp_path, resident=2) as own:
        for name in "abcde":
            ask(own, name, batch(0))
        own._do(lambda: None)  # the learner has finished
        assert known(own) == ["b", "c"]
    with service(tmp_path, resident=2) as again:
        assert known(again) == ["d", "e"]
        assert again.streams()[0].guard == "on disk until its next request"
        assert again.streams()[0].batches == 1
        assert again.status("a").gauges["samples"] == 8  # read for the question
        assert known(again) == ["a", "e"]


def test_a_state_without_what_is_shown_is_listed_by_its_numbers(tmp_path: Path) -> None:
    with service(tmp_path) as first:
        ask(first, "a", batch(0))
        first._do(lambda: None)  # the learner has finished
        whole = first.status("a")
    (path,) = states(tmp_path)
    tensors, text = read_tensors(path, "equipoise stream", 1)
    del text["shown"]  # as versions before wrote it
    write_tensors(path, "equipoise stream", 1, tensors, text)
    with service(tmp_path) as again:
        (status,) = again.streams()
        assert (status.batches, status.gauges, status.events) == (1, {}, ())
        assert again.status("a") == replace(whole, resident=False)


def test_idle_streams_are_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.production.server.learner._TICK", 0.01)
    with service(tmp_path, idle_seconds=HANG) as idle:
        ask(idle, "a", batch(0))
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * HANG)
        wait_until(lambda: not idle.streams()[0].resident, "the stream goes to disk")


def test_streams_with_names_that_are_alike_are_kept_apart(tmp_path: Path) -> None:
    names = ["a", "A", "a.", "a-b", "a_b", "con", "0", "x" * 64, "x" * 63]
    with service(tmp_path / "one") as first:
        for seed, name in enumerate(names):
            ask(first, name, batch(seed))
    with service(tmp_path / "one") as again:
        assert [status.name for status in again.streams()] == sorted(names)
    assert {path.name for path in tmp_path.iterdir()} == {"one"}


def test_one_stream_too_many_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with service(tmp_path, streams=1) as small:
        ask(small, "a", batch(0))
        with pytest.raises(TooManyStreamsError, match="1 streams"):
            small.submit("b", batch(0))
        assert [status.name for status in small.streams()] == ["a"]
        with pytest.raises(UnknownStreamError, match="'b'"):
            small.status("b")


def test_a_folder_serves_one_process(tmp_path: Path) -> None:
    with service(tmp_path), pytest.raises(StorageError, match="another process"):
        service(tmp_path)


def test_a_folder_of_another_method_or_model_is_refused(tmp_path: Path) -> None:
    with service(tmp_path) as first:
        ask(first, "a", batch(0))
    with pytest.raises(StateError, match="expected method 'tent', got 'poise'"):
        service(tmp_path, adapter=adapter("tent"))
    retrained = trained()
    with torch.no_grad():
        next(retrained.parameters()).mul_(1.001)
    with pytest.raises(StateError, match="another model"):
        service(
            tmp_path,
            adapter=eq.create(
                "poise", retrained, eq.rehearse(retrained, held_out(), shifts=8, progress=False)
            ),
        )
    with service(tmp_path) as again:
        assert again.status("a").batches == 1


def test_reading_a_stream_on_disk_evicts_no_other(tmp_path: Path) -> None:
    with service(tmp_path, resident=2) as own:
        for name in ("a", "b", "c"):
            answer = ask(own, name, batch(0))
        own._do(lambda: None)  # the learner has finished
        rows = own.history("c")
        assert [status.resident for status in own.streams()] == [False, True, True]
        for _ in range(2):
            assert own.status("a").gauges["samples"] == 8
            assert _without_time(own.history("a")) == _without_time(rows)
        assert [status.resident for status in own.streams()] == [False, True, True]
        ask(own, "c", batch(1))
        own.label("c", answer.request, labels(0))
        ask(own, "d", batch(0))  # "b" was used least recently
        assert [status.resident for status in own.streams()] == [False, False, True, True]


def test_a_stream_that_was_not_guarded_goes_on_under_a_guard(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    with service(folder, guarded=False) as own, service(tmp_path / "two", guarded=False) as other:
        for seed in range(3):
            ask(own, "a", batch(seed, shift=2.0))
            ask(other, "a", batch(seed, shift=2.0))
        expected = ask(other, "a", batch(9, shift=2.0))
    with service(folder) as again:
        assert again.status("a").batches == 3
        assert same(ask(again, "a", batch(9, shift=2.0)), expected)
        assert again.status("a").events == ()
        assert again.snapshot("a").endswith("batch-1")
    with service(folder, guarded=False) as back:
        assert back.status("a").batches == 4


def test_the_rehearsal_of_a_method_is_used(tmp_path: Path) -> None:
    source = eq.rehearse(trained(), held_out(), method="tent", shifts=8, progress=False)
    source.save(tmp_path / "statistics")
    for method, tempered in (("tent", True), ("norm", False)):
        made = ServiceFromFactory("", tmp_path / "statistics", method, Limits(latency_ms=PATIENT))
        with made.around(trained(), tmp_path / method) as own:
            answer = ask(own, "a", batch(0, 32))
            assert (answer.accuracy is not None) == tempered
