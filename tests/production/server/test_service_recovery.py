"""A service that is opened on the folder of a killed one: at most the batches since a snapshot are lost."""

import json
import os
import shutil
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.production.server.errors import InputError
from equipoise.production.server.served_stream import ServedStream
from equipoise.production.server.store import StreamFolder
from tests.production.server.support import ask, batch, counted, judged, labels, same, service, states


def killed(folder: Path, batches: int, **options: object) -> Path:
    """The folder of a service that was killed after a number of batches of the stream "a"."""
    left = folder.with_name(f"{folder.name}-killed")
    with service(folder, **options) as own:
        for seed in range(batches):
            ask(own, "a", batch(seed))
        own._do(lambda: shutil.copytree(folder, left))  # between two batches
    return left


def labelled_and_killed(folder: Path) -> Path:
    """The folder of a service that was killed after two batches, one of them labelled."""
    left = folder.with_name(f"{folder.name}-killed")
    with service(folder) as own:
        answers = [ask(own, "a", batch(seed)) for seed in range(2)]
        own.label("a", answers[0].request, labels(0))
        own._do(lambda: shutil.copytree(folder, left))
    return left


@pytest.mark.parametrize("save_every", [10, 1000])
def test_a_killed_stream_goes_on_from_its_last_snapshot(tmp_path: Path, save_every: int) -> None:
    left = killed(tmp_path / "one", 23, save_every=save_every)
    with service(left) as own, service(tmp_path / "two") as other:
        assert own.status("a").batches == 20
        assert [name.split("-", 1)[1] for name in own.status("a").snapshots] == ["batch-10", "batch-20"]
        for seed in range(20):
            ask(other, "a", batch(seed))
        assert same(ask(own, "a", batch(30)), ask(other, "a", batch(30)))


def test_the_states_of_an_unguarded_stream_are_as_close_as_snapshots(tmp_path: Path) -> None:
    with service(killed(tmp_path / "one", 12, guarded=False), guarded=False) as own:
        assert own.status("a").batches == 10


def test_snapshots_newer_than_the_state_are_dropped(tmp_path: Path) -> None:
    left = killed(tmp_path / "one", 23)
    states(left)[-1].unlink()  # as if killed between the snapshot and the state of batch 20
    with service(left) as own:
        assert own.status("a").batches == 10
        assert own.rollback("a").endswith("batch-10")
        assert len(own.status("a").snapshots) == 1
    assert len(list(left.rglob("*-batch-*"))) == 1


def test_snapshots_of_a_stream_without_a_state_are_dropped(tmp_path: Path) -> None:
    left = killed(tmp_path / "one", 13)
    for path in states(left):
        path.unlink()
    with service(left) as own:
        assert own.status("a").snapshots == ()
        ask(own, "a", batch(0))
        assert own.snapshot("a").endswith("batch-1")


def test_labels_acknowledged_before_the_first_state_count_after_a_kill(tmp_path: Path) -> None:
    left = labelled_and_killed(tmp_path / "one")
    assert not states(left)
    with service(left) as own, service(tmp_path / "two") as other:
        answer = ask(other, "a", batch(0))
        other.label("a", answer.request, labels(0))
        ours, theirs = (each.status("a") for each in (own, other))
        assert ours.gauges["labels"] == theirs.gauges["labels"] == 8
        assert ours.gauges["true_accuracy"] == theirs.gauges["true_accuracy"]
        assert judged(own) == judged(other) > 0
        assert counted(own) == counted(other) == 8
    with service(left) as again:
        assert again.status("a").gauges["labels"] == 8  # once
        assert counted(again) == 8


def test_labels_count_in_the_monitor_of_a_stream_whose_states_are_all_damaged(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        own.label("a", answer.request, labels(0))
    for path in states(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])
    with service(tmp_path) as again:
        assert again.status("a").gauges["labels"] == 8
        assert judged(again) == counted(again) == 0  # they are of a model that is lost


def test_labels_replayed_after_a_kill_add_no_samples(tmp_path: Path) -> None:
    left = tmp_path / "killed"
    with service(tmp_path / "one") as own:
        answers = [ask(own, "a", batch(seed)) for seed in range(3)]
        own.snapshot("a")  # the state that is written has the answers, and not the labels
        for seed, answer in enumerate(answers):
            own.label("a", answer.request, labels(seed))
        own._do(lambda: shutil.copytree(tmp_path / "one", left))
        before, rows = own.status("a").gauges, own.history("a")
    with service(left) as again:
        assert again.status("a").gauges == before
        assert again.history("a") == rows


def test_labels_sent_again_after_a_kill_before_their_mark_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "killed"
    with service(tmp_path / "one") as own:
        answer = ask(own, "a", batch(0))
        own.snapshot("a")
        with monkeypatch.context() as patch:
            patch.setattr(own._answers, "mark", lambda *_: None)  # killed between the journal and the mark
            own.label("a", answer.request, labels(0))
        own._do(lambda: shutil.copytree(tmp_path / "one", left))
    with service(left) as again:
        assert again.label("a", answer.request, labels(0)).rows == 8
        assert len(list(again._cache.streams["a"].journal.entries())) == 1
        assert again.status("a").gauges["labels"] == 8


def test_partial_files_of_killed_writes_are_removed(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        folder = own._cache.streams["a"].folder.path
    (tmp_path / ".service.json.1.ab.partial").write_bytes(b"x")
    (folder / ".state-2.safetensors.1.ab.partial").write_bytes(b"x")
    with service(tmp_path) as again:
        ask(again, "a", batch(1))
    assert not list(tmp_path.rglob(".*.partial"))
    assert len(states(tmp_path)) == 2


@pytest.mark.parametrize("content", [None, b"", b'{"name": 3}', b"[]"])
def test_a_stream_goes_on_although_the_file_with_its_name_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("out of memory")

    with service(tmp_path) as own:
        answers = [ask(own, "a", batch(seed)) for seed in range(3)]
        own.label("a", answers[0].request, labels(0))
    (path,) = tmp_path.glob("streams/*/stream.json")
    path.unlink() if content is None else path.write_bytes(content)
    with service(tmp_path) as again:
        with monkeypatch.context() as patch:
            patch.setattr(again._cache, "bring", fail)
            with pytest.raises(InputError, match="out of memory"):  # nothing of the stream is deleted for it
                ask(again, "a", batch(9))
        ask(again, "a", batch(3))
        again.label("a", answers[1].request, labels(1))
        status = again.status("a")
        assert (status.batches, status.gauges["labels"]) == (4, 16)
    with service(tmp_path) as last:
        assert [status.batches for status in last.streams()] == [4]


def test_the_folder_of_the_first_label_is_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = set()
    force = os.fsync

    def note(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)
        force(handle)

    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        monkeypatch.setattr(os, "fsync", note)
        own.label("a", answer.request, labels(0))
        folder = own._cache.streams["a"].folder.path
    for path in (folder / "labels.jsonl", folder, folder.parent):
        assert path.stat().st_ino in flushed


def test_facts_of_a_stream_as_written_since_version_1_are_read(tmp_path: Path) -> None:
    facts = {"shape": [3, 6, 6], "mode": "hold", "batches": 10, "samples": 80, "last_seen": 1.5, "labels": 2}
    facts |= {"source_temperature": 0.25, "source_accuracy": [0.72, 0.57, 0.84, True], "unlearned": 0}
    stream = ServedStream(name="a", folder=StreamFolder(tmp_path, "a"))
    stream.take({**facts, "of_a_later_version": 1})
    assert (stream.shape, stream.mode, stream.batches) == ((3, 6, 6), "hold", 10)
    assert stream.source_accuracy == eq.Estimate(0.72, 0.57, 0.84, True)
    assert json.loads(json.dumps(stream.facts())) == {**facts, "reset_after": 0}
