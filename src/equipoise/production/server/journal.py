"""The journal of a stream's labels: on disk before they are acknowledged, read again at a restart."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise.files import flush_folder
from equipoise.production.server.answers import Answered

_LARGEST = 2**22
"""Bytes after which a journal whose labels are all in the saved state is set aside."""


@dataclass(frozen=True)
class LabelEntry:
    """Labels of a request, with the answer that they are compared with.

    Attributes:
        number: counts the labels of the stream, from 1.
        request: the id of the request.
        labels: a class for each row.
        answered: the answer.
    """

    number: int
    request: str
    labels: list[int]
    answered: Answered


class Journal:
    """Lines of JSON, one for each request that was labelled; a last line that was torn is left out.

    Args:
        path: of the file; another of the same name with ".old" holds earlier lines.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._old = path, path.with_name(f"{path.name}.old")

    def append(self, entry: LabelEntry) -> None:
        """Write an entry to disk; OSError, and no entry, if that fails."""
        values = {"number": entry.number, "request": entry.request, "labels": entry.labels}
        line = json.dumps({**values, "answered": entry.answered.to_json()}).encode() + b"\n"
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            end = self._whole_lines(handle)
            try:
                if os.pwrite(handle, line, end) != len(line):
                    raise OSError(28, "no space left for the whole line")
                os.fsync(handle)
                if not end:  # a new file, and perhaps a new folder: without its name it would be lost
                    flush_folder(self._path.parent)
                    flush_folder(self._path.parent.parent)
            except OSError:
                os.ftruncate(handle, end)
                raise
        finally:
            os.close(handle)

    @staticmethod
    def _whole_lines(handle: int) -> int:
        """The end of the last whole line."""
        end = os.fstat(handle).st_size
        if not end or os.pread(handle, 1, end - 1) == b"\n":
            return end
        return os.pread(handle, end, 0).rfind(b"\n") + 1

    def entries(self, after: int = 0) -> Iterator[LabelEntry]:
        """The entries with numbers above `after`, oldest first; damaged lines are left out."""
        for path in (self._old, self._path):
            if path.exists():
                for line in path.read_bytes().splitlines():
                    entry = _read(line)
                    if entry is not None and entry.number > after:
                        after = entry.number
                        yield entry

    def set_aside(self) -> None:
        """Begin a new file if this one is large; all of its labels must be in a saved state."""
        if self._path.exists() and self._path.stat().st_size > _LARGEST:
            self._path.replace(self._old)


def _read(line: bytes) -> LabelEntry | None:
    try:
        values = json.loads(line)
        labels = [int(label) for label in values["labels"]]
        answered = Answered.from_json(values["answered"])
        return LabelEntry(int(values["number"]), str(values["request"]), labels, answered)
    except (KeyError, TypeError, ValueError, RuntimeError):
        return None
