"""Which replica owns a stream, and the folders of streams that get another owner."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from equipoise.errors import StateError
from equipoise.production.server.errors import StorageError
from equipoise.production.server.ray.folders import owner, replica_folder, spread_streams
from equipoise.production.server.store import FolderLock
from tests.support.waiting import HANG

NAMES = [f"camera {number}" for number in range(4000)]


def test_every_process_computes_the_same_owner() -> None:
    assert [owner(name, 5) for name in ("gate", "yard", "roof", "Tür", "")] == [3, 3, 2, 3, 2]
    assert owner("anything", 1) == 0


def test_replicas_own_equal_shares() -> None:
    counts = Counter(owner(name, 4) for name in NAMES)
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(abs(count - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5 for count in counts.values())


def test_a_new_replica_takes_its_share_and_nothing_else_moves() -> None:
    moved = [(owner(name, 4), owner(name, 5)) for name in NAMES if owner(name, 4) != owner(name, 5)]
    assert {new for _, new in moved} == {4}
    assert abs(len(moved) - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5


# ---------------------------------------------------------------------- folders


def write_stream(home: Path, name: str, identity: str = "poise of a model") -> None:
    """A stream as a service writes it."""
    folder = home / "streams" / f"folder-of-{name}"
    folder.mkdir(parents=True)
    (folder / "stream.json").write_text(json.dumps({"name": name}))
    (folder / "state-1.safetensors").write_text(f"state of {name}")
    (home / "service.json").write_text(json.dumps({"identity": {"method": identity}}))


def found(folder: Path) -> dict[str, str]:
    """The home of each stream whose files are all there, by name; each stream has one."""
    homes: dict[str, str] = {}
    for path in folder.rglob("stream.json"):
        name = json.loads(path.read_text())["name"]
        assert name not in homes
        assert (path.parent / "state-1.safetensors").read_text() == f"state of {name}"
        assert (path.parents[2] / "service.json").exists()
        homes[name] = path.parents[2].name
    return homes


def owners(replicas: int) -> dict[str, str]:
    return {name: f"replica-{owner(name, replicas)}" for name in NAMES[:40]}


def test_streams_follow_their_owners_when_the_number_of_replicas_changes(tmp_path: Path) -> None:
    for name in NAMES[:40]:
        write_stream(tmp_path, name)  # of a service without replicas
    for replicas in (2, 5, 3, 1):
        spread_streams(tmp_path, replicas, wait=0)
        assert found(tmp_path) == owners(replicas)


def test_an_interrupted_move_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:40]:
        write_stream(tmp_path, name)
    rename, moves = Path.rename, iter(range(10))

    def interrupted(path: Path, target: Path) -> Path:
        if next(moves, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", interrupted)
        spread_streams(tmp_path, 3, wait=0)
    assert len(found(tmp_path)) == 40
    spread_streams(tmp_path, 3, wait=0)
    assert found(tmp_path) == owners(3)


def test_streams_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    write_stream(tmp_path, "gate")
    write_stream(replica_folder(tmp_path, 0), "yard", identity="tent of another model")
    before = found(tmp_path)
    with pytest.raises(StateError, match="streams of one method and model, got those of several"):
        spread_streams(tmp_path, 2, wait=0)
    assert found(tmp_path) == before


def test_a_stream_in_two_folders_is_refused_and_both_stay(tmp_path: Path) -> None:
    write_stream(tmp_path, "gate")
    write_stream(replica_folder(tmp_path, 0), "gate")
    with pytest.raises(StateError, match="expected the stream in one folder"):
        spread_streams(tmp_path, 1, wait=0)
    assert len(list(tmp_path.rglob("stream.json"))) == 2


def test_nothing_moves_while_a_replica_still_runs(tmp_path: Path) -> None:
    write_stream(replica_folder(tmp_path, 0), "gate")
    running = FolderLock(replica_folder(tmp_path, 0) / "lock")
    with pytest.raises(StorageError, match="another process holds the lock"):
        spread_streams(tmp_path, 2, wait=0.1)
    running.release()
    spread_streams(tmp_path, 2, wait=0)


# ---------------------------------------------------------------------- locks

HOLD = """
import sys
from pathlib import Path
from equipoise.production.server.store import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_has_one_owner_and_a_killed_process_owns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match="another process holds the lock"):
            FolderLock(path)
        process.send_signal(signal.SIGKILL)
        lock = FolderLock(path, wait=HANG)
    with pytest.raises(StorageError):
        FolderLock(path)
    lock.release()
    lock.release()
    FolderLock(path).release()


def test_a_lock_in_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the lock file cannot be opened"):
        FolderLock(tmp_path / "file" / "lock")
