"""The answers of recent requests and the labels that came for them, on disk."""

import base64
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from equipoise.files import flush_folder
from equipoise.production.server.errors import UnknownRequestError

_SEGMENTS = 4
"""The number of files that the answers are spread over; the oldest is deleted when there are more."""

_UNLABELLED = b"0" * 16
_ID = re.compile(r"([0-9a-f]{1,12})-([0-9a-f]{1,12})-[0-9a-f]{12}")

_LARGEST = 2**22
"""Bytes after which a journal whose labels are all in the saved state is set aside."""


@dataclass(frozen=True)
class Answered:
    """The answer to a request, as labels are compared with it.

    Attributes:
        stream: the name of the stream.
        given: the logits that the client's probabilities were made of, (N, C).
        adapted: those of the adapted model; None where it was not asked.
        source: those of the source model, where it was asked.
        batch: the guard's number of the batch, or without a guard that of the stream; None where an earlier
            version wrote none.
    """

    stream: str
    given: Tensor
    adapted: Tensor | None
    source: Tensor | None
    batch: int | None = None

    def rows(self, chosen: Tensor | slice) -> "Answered":
        """The answer to some rows of the batch: those where `chosen`, (N,), is true."""
        given, source = self.given[chosen], None if self.source is None else self.source[chosen]
        if self.adapted is self.given:
            return replace(self, given=given, adapted=given, source=source)
        adapted = None if self.adapted is None else self.adapted[chosen]
        return replace(self, given=given, adapted=adapted, source=source)

    def split(self, sizes: Sequence[int]) -> "list[Answered]":
        """The answers to the requests of the batch, by their numbers of rows."""
        return [self.rows(slice(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def by_source(self, source: Tensor, temperature: float | None) -> "Answered":
        """The same batch, answered by the source model."""
        return replace(self, given=source if temperature is None else source / temperature, source=source)

    @property
    def unserved(self) -> Tensor | None:
        """The logits of the model that did not answer."""
        return self.source if self.adapted is self.given else self.adapted

    def to_json(self) -> dict[str, object]:
        """Text and numbers, exactly."""
        parts = {"given": self.given, "adapted": self.adapted, "source": self.source}
        same = self.adapted is self.given
        packed = {name: None if value is None else pack(value) for name, value in parts.items()}
        return {
            "stream": self.stream,
            "classes": self.given.shape[1],
            **packed,
            "adapted": "given" if same else packed["adapted"],
            "batch": self.batch,
        }

    @classmethod
    def from_json(cls, values: dict[str, object]) -> "Answered":
        """The inverse of `to_json`; ValueError, KeyError or TypeError for anything else."""
        classes = int(str(values["classes"]))
        given = unpack(str(values["given"]), classes)
        adapted, source = (
            None
            if values[name] is None
            else given
            if values[name] == "given"
            else unpack(str(values[name]), classes)
            for name in ("adapted", "source")
        )
        batch = None if values.get("batch") is None else int(str(values["batch"]))
        return cls(str(values["stream"]), given, adapted, source, batch)


def pack(logits: Tensor) -> str:
    """Logits as text, in single precision."""
    return base64.b64encode(logits.detach().cpu().float().contiguous().numpy().tobytes()).decode()


def unpack(text: str, classes: int) -> Tensor:
    """The inverse of `pack`."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).view(-1, classes)


def labels_hash(labels: Sequence[int]) -> bytes:
    """Sixteen letters that differ for other labels."""
    digest = hashlib.blake2b(json.dumps(list(labels)).encode(), digest_size=8)
    return digest.hexdigest().encode()


def new_token() -> str:
    """Letters that no other request has: the end of the ids of all answers to a request."""
    return secrets.token_hex(6)


def token_of(request: str) -> str:
    """The token of a request by the id of an answer to it."""
    return request.rpartition("-")[2]


class AnswerLog:
    """A bounded log of answers in a few files; a request's id says where its answer is.

    It takes no memory, survives the death of the process, and is not forced to disk: a power failure may
    take answers that no label has come for. Each line starts with sixteen letters that are overwritten when
    labels have come. Several threads may use it.

    Args:
        folder: of the files; made where it is not there.
        limit: the most bytes on disk.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._limit, self._lock = folder, max(limit // _SEGMENTS, 1), threading.Lock()
        self._file, self._number, self._end = -1, max(self._numbers(), default=0), 0
        if self._number:
            self._go_on()
        else:
            self._begin()

    def _numbers(self) -> list[int]:
        found = (path.stem for path in self._folder.glob("*.jsonl"))
        return sorted(int(stem, 16) for stem in found if re.fullmatch("[0-9a-f]{8,12}", stem))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08x}.jsonl"

    def _go_on(self) -> None:
        """Go on with the newest file, after its last whole line."""
        path = self._path(self._number)
        self._end = path.read_bytes().rfind(b"\n") + 1
        self._file = os.open(path, os.O_RDWR)
        os.ftruncate(self._file, self._end)

    def _begin(self) -> None:
        """Begin a new file, and delete the oldest one."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._number, self._end = self._number + 1, 0
        self._file = os.open(self._path(self._number), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        for number in self._numbers()[:-_SEGMENTS]:
            self._path(number).unlink(missing_ok=True)

    def add(self, answers: Mapping[str, Answered]) -> list[str]:
        """Write answers, by the tokens of their requests; returns the ids of the answers.

        A full disk is no error, as the answers go to the clients all the same: an answer that could not be
        written has an id too, which is unknown when its labels come.
        """
        with self._lock:
            lines = {token: json.dumps(answer.to_json()).encode() for token, answer in answers.items()}
            return [self._add(token, line) for token, line in lines.items()]

    def _add(self, token: str, line: bytes) -> str:
        try:
            if self._file < 0 or (self._end and self._end + len(line) > self._limit):
                self._begin()
            request = f"{self._number:x}-{self._end:x}-{token}"
            whole = b"%s %s %s\n" % (_UNLABELLED, request.encode(), line)
            written = os.pwrite(self._file, whole, self._end)
            if written == len(whole):
                self._end += written
        except OSError:
            return f"{self._number:x}-{self._end:x}-{token}"
        return request

    def find(self, request: str) -> tuple[Answered, bytes | None]:
        """The answer to a request, and the hash of its labels if they have come."""
        where = _ID.fullmatch(request) if isinstance(request, str) else None
        if where is None:
            raise UnknownRequestError("expected the id of a request as an answer has it, got another text")
        number, offset = (int(part, 16) for part in where.groups())
        try:
            with self._path(number).open("rb") as opened:
                opened.seek(offset)
                mark, name, line = opened.readline().split(b" ", 2)
            if name.decode() != request:
                raise ValueError(name)
            answered = Answered.from_json(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnknownRequestError(
                f"the request {request} is not known, or was forgotten: the answers of the last "
                f"{_SEGMENTS * self._limit} bytes are remembered"
            ) from error
        return answered, None if mark == _UNLABELLED else mark

    def mark(self, request: str, labels: Sequence[int]) -> None:
        """Note that labels have come for a request; nothing happens if it is forgotten."""
        try:
            self.find(request)
            number, offset = (int(part, 16) for part in request.split("-")[:2])
            with self._path(number).open("r+b") as opened:
                opened.seek(offset)
                opened.write(labels_hash(labels))
        except (OSError, UnknownRequestError):
            return

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


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
