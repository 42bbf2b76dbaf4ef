"""Results on disk: lines of JSON, each cell once, that survive a kill at any moment."""

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from equipoise.errors import StateError
from equipoise.files import whole_file
from equipoise.research.experiment.provenance import content_key
from equipoise.research.experiment.schema import Cell, CellResult, StreamSummary

RESULTS, STREAMS, MODELS, CACHE = "results.jsonl", "streams.jsonl", "models", "cache"
"""The files and folders of a run."""


class Store:
    """The results in a folder, open for one run at a time.

    Use it as a context manager: it holds a lock, so that a second run on the same folder is refused. A line
    is written whole and at once; a line that a kill cut short is dropped when the store is opened again. A
    failed cell is dropped when it is tried again, so the file has each cell once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._streams: set[str] = set()
        self._cells: list[Mapping[str, Any]] = []

    def __enter__(self) -> "Store":
        if self.folder.exists() and not self.folder.is_dir():
            raise StateError(f"{self.folder}: expected a folder for the results, this is a file")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.__exit__(None, None, None)
            raise StateError(
                f"{self.folder}: another run is writing to it; wait for it, or give another folder"
            ) from error
        for line in _mended(self.folder / RESULTS):
            (self._done if line["status"] == "ok" else self._failed).add(line["key"])
            self._cells.append(line["cell"])
        self._streams = {line["key"] for line in _mended(self.folder / STREAMS)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def done(self) -> frozenset[str]:
        """The keys of the cells that have a result."""
        return frozenset(self._done)

    @property
    def streams(self) -> frozenset[str]:
        """The keys of the streams that have a summary."""
        return frozenset(self._streams)

    def of_other_code(self, cells: Iterable[Cell]) -> int:
        """The number of results, from before this run, of the experiments of these cells with other code."""
        code = {_experiment(cell): cell["code"] for cell in cells}
        return sum(code.get(_experiment(old), old.get("code")) != old.get("code") for old in self._cells)

    def forget_failures(self, keys: Collection[str]) -> None:
        """Drop the failures of these cells, which are about to be tried again."""
        again = self._failed & set(keys)
        if not again:
            return
        path = self.folder / RESULTS
        kept = [line for line in path.read_text().splitlines() if json.loads(line)["key"] not in again]
        with whole_file(path) as partial:
            partial.write_text("".join(line + "\n" for line in kept))
        self._failed -= again

    def add(self, stream: StreamSummary | None, results: Iterable[CellResult]) -> None:
        """Write the results of a run: all of its cells, or none if it is killed before."""
        if stream is not None and stream["key"] not in self._streams:
            _append(self.folder / STREAMS, [stream])
            self._streams.add(stream["key"])
        new = [result for result in results if result["key"] not in self._done]
        _append(self.folder / RESULTS, new)
        for result in new:
            (self._done if result["status"] == "ok" else self._failed).add(result["key"])


def _experiment(cell: Mapping[str, Any]) -> str:
    """A hash of a cell without the method's code, and without its options, whose defaults are in the code."""
    return content_key({name: value for name, value in cell.items() if name not in ("code", "options")})


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _mended(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that a kill cut short, which can only be the last, is taken off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole, _, cut = content.rpartition(b"\n")
    if cut:
        with path.open("r+b") as file:
            try:
                json.loads(cut)  # an editor left no newline at the end
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                whole = content
            except ValueError:
                file.truncate(len(whole) + 1 if whole else 0)
    return [_read(path, number, text) for number, text in enumerate(whole.splitlines(), 1)]


def _read(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
        return {
            "key": str(line["key"]),
            "status": line.get("status", "ok"),
            "cell": dict(line.get("cell", {})),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path}, line {number}: not a result ({error}); restore the file, or remove that line"
        ) from error
