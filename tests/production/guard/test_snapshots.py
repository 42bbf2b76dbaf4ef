"""The ring of snapshots: bounded, atomic, and with damage found."""

import errno
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import equipoise as eq
from equipoise.errors import OptionError, StateError
from equipoise.production.guard.snapshots import Snapshots
from tests.production.guard.streams import full_disk
from tests.production.guard.streams import small as adapter
from tests.support.models import drifted, make, same


def learn(adapted: eq.Adapter, seed: int) -> dict[str, torch.Tensor]:
    """The state after one more batch."""
    adapted(drifted(8, seed))
    state: dict[str, torch.Tensor] = adapted.state_dict()
    return state


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "ring" if request.param == "disk" else None


def test_going_back_is_bit_equal(folder: Path | None) -> None:
    adapted, ring = adapter(), Snapshots(8, folder)
    states = {}
    for batch in (10, 20, 30):
        states[batch] = learn(adapted, batch)
        assert ring.take(adapted, batch).endswith(f"batch-{batch}")
    learn(adapted, 99)
    name, note = ring.restore(adapted, ring.between(0, 25))
    assert name is not None
    assert name.endswith("batch-20")
    assert not note
    assert same(adapted.state_dict(), states[20])
    ring.restore(adapted, ring.back(3))
    assert same(adapted.state_dict(), states[10])


def test_the_ring_is_bounded(folder: Path | None) -> None:
    adapted, ring = adapter(), Snapshots(3, folder)
    for batch in range(1, 8):
        ring.take(adapted, batch)
    assert [name.split("-")[-1] for name in ring.names] == ["5", "6", "7"]
    if folder is not None:
        assert sorted(path.stem for path in folder.iterdir()) == list(ring.names)


def test_with_a_folder_only_the_newest_is_in_memory(tmp_path: Path) -> None:
    adapted, ring = adapter(), Snapshots(3, tmp_path)
    for batch in (1, 2, 3):
        ring.take(adapted, batch)
    assert [kept.held is not None for kept in ring.back(1)] == [True, False, False]


def test_without_a_snapshot_the_adapter_stays(folder: Path | None) -> None:
    adapted, ring = adapter(), Snapshots(3, folder)
    before = learn(adapted, 0)
    ring.take(adapted, 10)
    assert ring.restore(adapted, ring.between(0, 9)) == (None, "")
    assert ring.restore(adapted, ring.between(10, 90)) == (None, "")
    assert same(adapted.state_dict(), before)
    with pytest.raises(OptionError, match="from 1 to 1"):
        ring.back(2)


def test_a_ring_opened_again_goes_on(tmp_path: Path) -> None:
    adapted = adapter()
    state = learn(adapted, 1)
    first = Snapshots(3, tmp_path)
    first.take(adapted, 10)
    learn(adapted, 2)
    again = Snapshots(3, tmp_path)
    assert again.names == first.names
    again.restore(adapted, again.back(1))
    assert same(adapted.state_dict(), state)
    assert again.take(adapted, 20).startswith("000002")


@pytest.mark.parametrize("place", [0.01, 0.3, 0.6, 0.99])
def test_a_flipped_bit_is_found_and_the_next_older_snapshot_is_taken(tmp_path: Path, place: float) -> None:
    adapted, ring = adapter(), Snapshots(3, tmp_path)
    state = learn(adapted, 1)
    ring.take(adapted, 10)
    learn(adapted, 2)
    newest = tmp_path / f"{ring.take(adapted, 20)}.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[int(place * len(damaged))] ^= 1
    newest.write_bytes(bytes(damaged))
    again = Snapshots(3, tmp_path)
    name, note = again.restore(adapted, again.back(1))
    assert name == "000001-batch-10"
    assert "000002-batch-20 cannot be read" in note
    assert same(adapted.state_dict(), state)
    assert newest.exists(), "a file that cannot be read stays"


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), StateError("of t3a")])
def test_snapshots_that_cannot_be_read_now_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    adapted, ring = adapter(), Snapshots(4, tmp_path)
    for batch in (1, 2, 3):
        ring.take(adapted, batch)

    def failing(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("equipoise.production.guard.snapshots.read_tensors", failing)
        name, note = ring.restore(adapted, ring.back(2))
    assert name is None
    assert str(error) in note
    assert sorted(path.stem for path in tmp_path.iterdir()) == list(ring.names)
    assert len(ring.names) == 3
    assert ring.restore(adapted, ring.back(2)) == ("000002-batch-2", "")


def test_the_snapshots_of_an_earlier_run_are_gone_back_to_on_request_only(tmp_path: Path) -> None:
    adapted = adapter()
    old = Snapshots(8, tmp_path).take(adapted, 3)
    ring = Snapshots(8, tmp_path)
    new = ring.take(adapted, 5)
    assert [kept.name for kept in ring.between(0, 9)] == [new]
    assert [kept.name for kept in ring.back(1)] == [new, old]
    ring.adopt([old])
    assert [kept.name for kept in ring.between(0, 9)] == [old]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(OptionError, match="expected a folder for snapshots, got a file"):
            Snapshots(3, tmp_path / path)


def test_the_snapshot_of_another_model_is_passed_over(tmp_path: Path) -> None:
    Snapshots(3, tmp_path).take(eq.create("poise", *make(seed=1), tempering="none"), 10)
    ring = Snapshots(3, tmp_path)
    name, note = ring.restore(adapter(), ring.back(1))
    assert name is None
    assert "that of another" in note


def test_a_full_disk_leaves_the_snapshots_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted, ring = adapter(), Snapshots(4, tmp_path)
    ring.take(adapted, 10)

    states = []
    with full_disk(monkeypatch):
        for batch in (20, 30):
            states.append(learn(adapted, batch))
            ring.take(adapted, batch)
    assert "No space left" in ring.trouble
    assert len(ring.names) == 3
    ring.restore(adapted, ring.back(2))
    assert same(adapted.state_dict(), states[0])
    ring.take(adapted, 40)
    assert not ring.trouble
    assert not list(tmp_path.glob(".*"))


def _write_until_killed(folder: Path, adapted: eq.Adapter, share: float, ready: int) -> None:
    """In a child: write a part of the next snapshot, say so, and wait to be killed."""

    def torn(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: int(share * len(data))])
            file.flush()
            os.write(ready, b"x")
            signal.pause()
        return 0

    with patch.object(Path, "write_bytes", torn):
        Snapshots(4, folder).take(adapted, 999)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kill_9_in_the_middle_of_a_write_twenty_times_loses_nothing(tmp_path: Path) -> None:
    adapted = adapter()
    for kill in range(20):
        state = learn(adapted, kill)
        written = Snapshots(4, tmp_path).take(adapted, kill)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                _write_until_killed(tmp_path, adapted, kill / 20, write)
            finally:
                os._exit(1)
        assert os.read(read, 1) == b"x"
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for end in (read, write):
            os.close(end)
        assert list(tmp_path.glob(".*.partial"))
        ring = Snapshots(4, tmp_path)
        assert not list(tmp_path.glob(".*.partial"))
        assert ring.names[-1] == written
        adapted.reset()
        assert ring.restore(adapted, ring.back(1)) == (written, "")
        assert same(adapted.state_dict(), state)
