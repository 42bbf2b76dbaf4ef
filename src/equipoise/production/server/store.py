"""The state folder of a service: one process at a time, a folder for each stream, two states of each."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.core.checkpoint import check_identity, encoded
from equipoise.errors import StateError
from equipoise.files import read_tensors, whole_file, write_tensors
from equipoise.production.server.errors import StorageError

_KIND, _VERSION = "equipoise stream", 1
FACTS = ("stream", "guard", "monitor", "events")
FACTS_FILE = "service.json"
KEPT = 2
"""The number of states of a stream that are kept: the older one stands in for a newest that is damaged."""

_PAUSE = 0.05


class FolderLock:
    """An exclusive lock on a path, held until `release` or the end of the process.

    The kernel drops the lock of a process that is killed, so that no stale lock is ever left behind. The lock
    is `flock`: it works between the processes of a machine, and between machines on file systems that carry
    locks (NFS 4, Lustre, CephFS).

    Args:
        path: the lock file; it is made if need be, and stays.
        wait: seconds to wait for another owner to let go.
    """

    def __init__(self, path: Path, *, wait: float = 0.0) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"{path}: the lock file cannot be opened: {error.strerror}") from error
        deadline = time.monotonic() + wait
        while not _locked(self._descriptor):
            if time.monotonic() >= deadline:
                os.close(self._descriptor)
                raise StorageError(
                    f"{path}: another process holds the lock and so owns the streams of the folder; stop it, "
                    "or use another folder"
                )
            time.sleep(_PAUSE)

    def release(self) -> None:
        """Let another process have the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


@dataclass(frozen=True)
class StoredState:
    """The state of a stream as a file holds it.

    Attributes:
        tensors: everything that adaptation changes, as `Adapter.load_state_dict` takes it.
        facts: everything else, as JSON holds it; "stream" has the few numbers that are always in memory.
        shown: what the page shows of the stream while it is on disk, as JSON holds it; only written here, and
            read by `StreamFolder.shown`.
    """

    tensors: Mapping[str, Tensor]
    facts: dict[str, Any]
    shown: dict[str, Any] = field(default_factory=dict)


class StateFolder:
    """The folder of a service, locked while it is open.

    Args:
        path: of the folder; made where it is not there.
        adapter: whose streams are kept; a folder of another method or model is refused with StateError.
    """

    def __init__(self, path: str | os.PathLike[str], adapter: Adapter) -> None:
        self.path = Path(path)
        self._streams = self.path / "streams"
        try:
            self._streams.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path / "lock")
        except OSError as error:
            raise StorageError(f"{self.path}: the state folder cannot be used: {error}") from error
        try:
            _remove_partial(self.path)
            self._check_owner(adapter)
        except BaseException:
            self.close()
            raise

    def _check_owner(self, adapter: Adapter) -> None:
        """Check that the streams are of this adapter; a folder without streams becomes its own."""
        own, path = adapter.identity, self.path / FACTS_FILE
        if not path.exists():
            if any(self._streams.iterdir()):
                raise StateError(f"{path}: expected the file that says whose streams these are, got none")
            with whole_file(path) as partial:
                partial.write_text(json.dumps({"identity": own}))
        identity = encoded(identity_in(self.path))
        try:
            check_identity(identity, own)
        except StateError as error:
            raise StateError(f"{self.path}: the streams are of another service: {error}") from error

    def stream(self, name: str) -> "StreamFolder":
        """The folder of a stream; not made before something is written."""
        return StreamFolder(self._streams / folder_name(name), name)

    def streams(self) -> Iterator["StreamFolder"]:
        """The folders of all streams."""
        for path in sorted(self._streams.iterdir()):
            name = name_in(path)
            if name is not None and path.name == folder_name(name):
                yield StreamFolder(path, name)

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()


class StreamFolder:
    """The folder of one stream.

    Attributes:
        path: of the folder.
        name: of the stream.
        snapshots: where the guard keeps its snapshots.
        labels: the path of the journal.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.snapshots, self.labels = path / "snapshots", path / "labels.jsonl"

    def make(self) -> None:
        """Make the folder, and the file with the name of the stream if it is missing or damaged."""
        if name_in(self.path) != self.name:
            self.path.mkdir(exist_ok=True)
            with whole_file(self.path / "stream.json") as partial:
                partial.write_text(json.dumps({"name": self.name}))

    @property
    def used(self) -> bool:
        """Whether the folder holds states or labels."""
        return bool(self._states()) or self.labels.exists()

    def remove(self) -> None:
        """Delete the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_snapshots(self) -> None:
        """Delete the guard's snapshots."""
        shutil.rmtree(self.snapshots, ignore_errors=True)

    def _states(self) -> list[tuple[int, Path]]:
        """The states, newest first."""
        numbered = ((re.fullmatch(r"state-(\d+)\.safetensors", path.name), path) for path in self._files())
        return sorted(((int(found[1]), path) for found, path in numbered if found), reverse=True)

    def _files(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def write(self, state: StoredState) -> None:
        """Write a state; OSError if that fails, and the older ones are as they were."""
        self.make()
        _remove_partial(self.path)
        states = self._states()
        newest = self.path / f"state-{states[0][0] + 1 if states else 1}.safetensors"
        facts = {**state.facts, "shown": state.shown}
        write_tensors(newest, _KIND, _VERSION, state.tensors, {n: json.dumps(f) for n, f in facts.items()})
        for _, path in states[KEPT - 1 :]:
            path.unlink(missing_ok=True)

    def read(self) -> Iterator[StoredState | StateError]:
        """The states, newest first; an error in the place of one that is damaged."""
        for _, path in self._states():
            yield _read(path)

    def facts(self) -> dict[str, Any]:
        """The few numbers of the newest state, without a check of the rest; empty where there are none."""
        return self._header("stream")

    def shown(self) -> dict[str, Any]:
        """What is shown of the stream by its newest state, unchecked as above; empty where there is none."""
        return self._header("shown")

    def _header(self, name: str) -> dict[str, Any]:
        """A part of the header of the newest state that can be read."""
        return next(filter(None, (_header(path, name) for _, path in self._states())), {})


def identity_in(folder: Path) -> dict[str, Any]:
    """The method and model whose streams a folder holds; StateError where their file is damaged."""
    path = folder / FACTS_FILE
    try:
        return dict(json.loads(path.read_text())["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: expected the facts of a service, got a damaged file: {error}") from error


def name_in(folder: Path) -> str | None:
    """The name of the stream of a folder; None after damage, or a crash before it had answered anything."""
    try:
        return str(json.loads((folder / "stream.json").read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove_partial(folder: Path) -> None:
    """Delete the files that a killed process has written in part; nobody else writes to the folder."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def _read(path: Path) -> StoredState | StateError:
    try:
        tensors, text = read_tensors(path, _KIND, _VERSION)
        return StoredState(tensors, {name: json.loads(text[name]) for name in FACTS})
    except StateError as error:
        return error
    except (OSError, ValueError, KeyError, TypeError) as error:
        return StateError(f"{path}: damaged: {error}")


def _header(path: Path, name: str) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as opened:
            return dict(json.loads((opened.metadata() or {})[name]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}  # it is reported when the stream is read


def folder_name(stream: str) -> str:
    """A file name for any text: the letters that are safe everywhere, and a hash of all of them."""
    readable = re.sub(r"[^a-z0-9]+", "-", stream.lower()).strip("-")[:40]
    digest = hashlib.blake2b(stream.encode(), digest_size=8).hexdigest()
    return f"{readable or 'stream'}-{digest}"
