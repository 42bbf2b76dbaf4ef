"""A bounded ring of snapshots of an adapter, in memory and on disk."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.adapter import Adapter
from equipoise.core.state import Snapshot
from equipoise.errors import OptionError, StateError
from equipoise.files import read_tensors, write_tensors

_KIND, _VERSION = "equipoise guard snapshot", 1
_NAME = re.compile(r"(\d{6,})-batch-(\d+)")
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Kept:
    """A snapshot in the ring.

    Attributes:
        number: of the snapshot, counted from 1.
        batch: the batch after which it was taken.
        held: the snapshot itself; None where it is on disk only.
        own: whether it is of this run; False for a file that an earlier run left.
    """

    number: int
    batch: int
    held: Snapshot | None = None
    own: bool = True

    @property
    def name(self) -> str:
        """The name of the snapshot, and of its file."""
        return f"{self.number:06d}-batch-{self.batch}"


class Snapshots:
    """A ring of snapshots, oldest first; the newest `keep` stay.

    Without a folder they are in memory. With one, each is a file with a checksum, written atomically, and
    memory has the newest only. Files that a killed process left half written are removed when the ring opens;
    a file that cannot be read is passed over and stays, and the next older one is taken. A folder that cannot
    be written (a full disk) is no error: `trouble` says so and the snapshot stays in memory.

    Files that are there when the ring opens are of an earlier run: `back` has them, `between` does not, until
    `adopt` names them.

    Args:
        keep: snapshots to keep.
        folder: for the files; made where it is missing. One ring alone writes there.
    """

    def __init__(self, keep: int, folder: str | os.PathLike[str] | None = None) -> None:
        self._keep, self._folder = keep, None if folder is None else Path(folder)
        self._kept: list[Kept] = []
        self.trouble = ""
        self._count = 0
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise OptionError(f"expected a folder for snapshots, got a file: {error.filename}") from error
            self._open(self._folder)

    def _open(self, folder: Path) -> None:
        for partial in folder.glob(".*.partial"):
            partial.unlink(missing_ok=True)
        found = (_NAME.fullmatch(path.stem) for path in folder.glob(f"*{_SUFFIX}"))
        kept = (Kept(int(m[1]), int(m[2]), own=False) for m in found if m)
        self._kept = sorted(kept, key=lambda kept: kept.number)
        self._count = max((kept.number for kept in self._kept), default=0)

    @property
    def on_disk(self) -> bool:
        """Whether the ring has a folder."""
        return self._folder is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names, oldest first."""
        return tuple(kept.name for kept in self._kept)

    def take(self, adapter: Adapter, batch: int) -> str:
        """Take a snapshot of an adapter; returns its name."""
        self._count += 1
        taken = Kept(self._count, batch, adapter.snapshot())
        self._kept.append(taken)
        if self._folder is not None:
            self._write(self._folder, taken, adapter)
        while len(self._kept) > self._keep:
            self._drop(self._kept[0])
        return taken.name

    def _write(self, folder: Path, taken: Kept, adapter: Adapter) -> None:
        """Write a snapshot; then the older ones need no memory."""
        text = {"fingerprint": adapter.model_fingerprint, "method": adapter.name}
        try:
            write_tensors(folder / f"{taken.name}{_SUFFIX}", _KIND, _VERSION, adapter.state_dict(), text)
        except OSError as error:
            self.trouble = f"snapshots are in memory only: {error}"
            return
        self.trouble = ""
        self._kept = [
            kept if kept is taken or not self._path(kept).exists() else replace(kept, held=None)
            for kept in self._kept
        ]

    def _path(self, kept: Kept) -> Path:
        return (self._folder or Path()) / f"{kept.name}{_SUFFIX}"

    def _drop(self, kept: Kept) -> None:
        self._kept = [other for other in self._kept if other.number != kept.number]
        if self._folder is not None:
            try:
                self._path(kept).unlink(missing_ok=True)
            except OSError as error:
                self.trouble = f"{kept.name} cannot be removed: {error}"

    def drop_after(self, batch: int) -> None:
        """Drop the snapshots taken after a batch: those of a course of the stream that was lost."""
        for kept in [kept for kept in self._kept if kept.batch > batch]:
            self._drop(kept)

    @property
    def own(self) -> tuple[str, ...]:
        """The names of those of this run, oldest first."""
        return tuple(kept.name for kept in self._kept if kept.own)

    def adopt(self, names: Collection[str]) -> None:
        """Take the snapshots of these names, and no others, for those of this run."""
        self._kept = [replace(kept, own=kept.name in names) for kept in self._kept]

    def between(self, after: int, until: int) -> list[Kept]:
        """Snapshots of this run taken after one batch and no later than another, newest first."""
        return [kept for kept in reversed(self._kept) if kept.own and after < kept.batch <= until]

    def back(self, steps: int) -> list[Kept]:
        """The snapshot a number of steps back, 1 the newest, and those older than it, newest first."""
        if not 1 <= steps <= len(self._kept):
            raise OptionError(f"expected steps from 1 to {len(self._kept)}, the snapshots kept, got {steps}")
        return self._kept[::-1][steps - 1 :]

    def restore(self, adapter: Adapter, candidates: list[Kept]) -> tuple[str | None, str]:
        """Go back to the first of some snapshots that can be read.

        Those that cannot stay: not every failure to read is damage (too many open files, another method).

        Returns:
            Its name, or None where there is none and the adapter is as it was; and the ones passed over, in
            words.
        """
        notes = []
        for kept in candidates:
            try:
                self._restore(adapter, kept)
            except (StateError, OSError) as error:
                notes.append(f"snapshot {kept.name} cannot be read: {error}")
                continue
            return kept.name, "; ".join(notes)
        return None, "; ".join(notes)

    def _restore(self, adapter: Adapter, kept: Kept) -> None:
        if kept.held is not None:
            adapter.restore(kept.held)
            return
        tensors, text = read_tensors(self._path(kept), _KIND, _VERSION)
        if text.get("fingerprint") != adapter.model_fingerprint:
            raise StateError(f"{self._path(kept)}: expected a snapshot of this model, got that of another")
        adapter.load_state_dict(tensors)
