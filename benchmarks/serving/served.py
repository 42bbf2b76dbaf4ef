"""The process that is measured: the HTTP door in front of a service, or in front of the bare model.

    python -m benchmarks.serving.served poise|bare FOLDER THREADS

FOLDER has the files of `pattern_stream.prepare`. Prints the URL when requests are taken.
"""

import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.serving.pattern_stream import CLASSES, prepared_model, prepared_source
from equipoise.production.server.app import bound_socket, create_app, serve, url_of
from equipoise.production.server.errors import ServiceError
from equipoise.production.server.interface import (
    NOTHING_ASKED,
    Asked,
    Mode,
    Prediction,
    ServiceLike,
    StreamStatus,
)
from equipoise.production.server.service import Service

ROWS = 256
"""The most samples in a batch that requests are joined to, as in a service."""


class BareService:
    """One thread answers with the model; requests that wait are joined to batches, as in a service."""

    method, ready = "bare", True

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.classes, self._model = classes, model
        self._waiting: deque[tuple[str, Tensor, Future[Prediction]]] = deque()
        self._changed, self._number = threading.Condition(), 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Future[Prediction]:
        """Queue a batch; a bare model has no sets and no decisions to give."""
        future: Future[Prediction] = Future()
        with self._changed:
            self._waiting.append((stream, torch.from_numpy(np.array(inputs, np.float32)), future))
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and self.ready:
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = [self._waiting.popleft()]
                rows = len(batch[0][1])
                while self._waiting and rows + len(self._waiting[0][1]) <= ROWS:
                    rows += len(self._waiting[0][1])
                    batch.append(self._waiting.popleft())
            self._answer(batch)

    def _answer(self, batch: list[tuple[str, Tensor, "Future[Prediction]"]]) -> None:
        with torch.inference_mode():
            probabilities = self._model(torch.cat([inputs for _, inputs, _ in batch])).softmax(1).numpy()
        start = 0
        for stream, inputs, future in batch:
            part = probabilities[start : start + len(inputs)]
            start += len(inputs)
            self._number += 1
            classes = part.argmax(1).tolist()
            name = str(self._number)
            future.set_result(
                Prediction(name, stream, classes, part, None, None, "source", "hold", False, "the bare model")
            )

    def label(self, stream: str, request: str, labels: Sequence[int]) -> NoReturn:
        """Refuse: nothing is kept."""
        raise ServiceError("the bare model has no streams")

    def reset(self, stream: str) -> None:
        """Refuse."""
        self.label(stream, "", ())

    def release(self, stream: str) -> None:
        """Refuse."""
        self.label(stream, "", ())

    def rollback(self, stream: str, steps: int = 1) -> str:
        """Refuse."""
        self.label(stream, "", ())

    def snapshot(self, stream: str) -> str:
        """Refuse."""
        self.label(stream, "", ())

    def set_mode(self, stream: str, mode: Mode) -> None:
        """Refuse."""
        self.label(stream, "", ())

    def streams(self) -> list[StreamStatus]:
        """None."""
        return []

    def status(self, stream: str) -> StreamStatus:
        """Refuse."""
        self.label(stream, "", ())

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        """Refuse."""
        self.label(stream, "", ())

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self.ready = False
            self._changed.notify()
        self._thread.join()


def service_of(kind: str, folder: Path) -> ServiceLike:
    """The bare model, or a service with the method of a name."""
    model = prepared_model(folder)
    if kind == "bare":
        return BareService(model, CLASSES)
    return Service(eq.create(kind, model, prepared_source(folder)), folder / "state")


def main(kind: str, folder: str, threads: str) -> None:
    """Serve until SIGTERM."""
    torch.set_num_threads(int(threads))
    service = service_of(kind, Path(folder))
    with bound_socket("127.0.0.1", 0) as bound:
        serve(create_app(service), service, bound, lambda: print(url_of(bound), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
