"""A service that only counts the batches of its streams: small enough to see what replicas make of it."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.production.server.errors import InputError, StorageError, UnknownStreamError
from equipoise.production.server.interface import LabelsTaken, Mode, Prediction, StreamStatus
from equipoise.production.server.store import FolderLock


class CountingService:
    """Counts batches; the counts are on disk after `snapshot` and `close`."""

    method = "counting"
    ready = True

    def __init__(self, folder: Path) -> None:
        self._lock = FolderLock(folder / "lock")
        self.released: list[str] = []
        self._path = folder / "counts.json"
        self.counts: dict[str, int] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def submit(self, stream: str, inputs: np.ndarray[Any, Any]) -> Future[Prediction]:
        if inputs.ndim < 2:
            raise InputError(f"expected inputs of shape (N, …), got {inputs.shape}")
        self.counts[stream] = self.counts.get(stream, 0) + 1
        future: Future[Prediction] = Future()
        probabilities = np.full((len(inputs), 3), 1 / 3, np.float32)
        count = str(self.counts[stream])
        future.set_result(
            Prediction(
                count, stream, [0] * len(inputs), probabilities, None, None, "student", "adapted", True, ""
            )
        )
        return future

    def label(self, stream: str, request: str, labels: Sequence[int]) -> LabelsTaken:
        return LabelsTaken(request, len(labels), sum(label == 0 for label in labels))

    def reset(self, stream: str) -> None:
        self.counts[stream] = 0

    def release(self, stream: str) -> None:
        self.released.append(stream)

    def rollback(self, stream: str, steps: int = 1) -> str:
        self.counts[stream] -= steps
        return str(self.counts[stream])

    def snapshot(self, stream: str) -> str:
        self._path.write_text(json.dumps(self.counts))
        return str(self.counts[stream])

    def set_mode(self, stream: str, mode: Mode) -> None:
        raise StorageError("the disk is full")

    def streams(self) -> list[StreamStatus]:
        return [self.status(name) for name in self.counts]

    def status(self, stream: str) -> StreamStatus:
        if stream not in self.counts:
            raise UnknownStreamError(f"there is no stream {stream!r}")
        count = self.counts[stream]
        return StreamStatus(stream, "adapted", True, count, count, time.time(), "", {}, (), ())

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        return [{"index": index} for index in range(since + 1, self.counts[stream] + 1)]

    def close(self) -> None:
        self._path.write_text(json.dumps(self.counts))
        self._lock.release()
