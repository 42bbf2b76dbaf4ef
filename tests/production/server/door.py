"""A service that answers at once and remembers everything, a client of its HTTP door, and bodies to send."""

import io
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from equipoise.calibration.rehearsal import Estimate
from equipoise.production.server.app import create_app
from equipoise.production.server.errors import (
    BusyError,
    ClosedError,
    InputError,
    UnknownRequestError,
    UnknownSnapshotError,
    UnknownStreamError,
)
from equipoise.production.server.interface import (
    NOTHING_ASKED,
    Asked,
    GuardEvent,
    LabelsTaken,
    Mode,
    Prediction,
    StreamStatus,
    ToActUpon,
)


@dataclass
class FakeStream:
    mode: Mode = "adapted"
    guard_holds: bool = False
    batches: int = 0
    samples: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    labels: dict[str, list[int]] = field(default_factory=dict)
    snapshots: list[str] = field(default_factory=list)


class FakeService:
    """Rows of `columns` numbers have class 1 where they sum to a positive number."""

    method, classes = "poise", 2

    def __init__(self, columns: int = 2, queue: int = 1000) -> None:
        self.ready, self.columns, self.queue = True, columns, queue
        self.fails: Exception | None = None
        self.held: list[Future[Prediction]] = []  # those that a test answers, where `holds`
        self.holds = False
        self.asked: list[Asked] = []
        self.closed = False
        self.held_streams: dict[str, FakeStream] = {}
        self._lock = threading.Lock()

    def state(self) -> dict[str, FakeStream]:
        return deepcopy(self.held_streams)

    def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Future[Prediction]:
        if not self.ready:
            raise ClosedError("the service is stopping")
        if self.fails is not None:
            raise self.fails
        if inputs.shape[1:] != (self.columns,):
            raise InputError(f"expected rows of shape ({self.columns},), got {inputs.shape[1:]}")
        future: Future[Prediction] = Future()
        with self._lock:
            if len(self.held) >= self.queue:
                raise BusyError("the queue is full")
            answer = self._answered(stream, inputs, asked)
            if self.holds:
                self.held.append(future)
        if not self.holds:
            future.set_result(answer)
        return future

    def _answered(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Prediction:
        known = self.held_streams.setdefault(stream, FakeStream())
        self.asked.append(asked)
        known.batches += 1
        known.samples += len(inputs)
        request = f"{stream}-{known.batches}"
        known.requests[request] = len(inputs)
        finite = np.isfinite(inputs).all(1)
        places = (inputs.sum(1) > 0).astype(int)
        probabilities = np.full((len(inputs), 2), 0.25, np.float32)
        probabilities[np.arange(len(inputs)), places] = 0.75
        probabilities[~finite] = np.nan
        return Prediction(
            request=request,
            stream=stream,
            classes=np.where(finite, places, -1).tolist(),
            probabilities=probabilities,
            temperature=1.5,
            accuracy=Estimate(0.9, 0.8, 0.95, True),
            answered_by="student",
            mode=known.mode,
            learned=known.mode != "hold",
            reason="" if finite.all() else "rows set aside: non-finite",
            sets=None if asked.coverage is None else [[place] for place in places.tolist()],
            decision=None if asked.accuracy is None else ToActUpon(finite.tolist(), 0.8, True),
        )

    def _known(self, stream: str) -> FakeStream:
        if stream not in self.held_streams:
            raise UnknownStreamError(f"no batch has come to {stream!r}")
        return self.held_streams[stream]

    def label(self, stream: str, request: str, labels: Sequence[int]) -> LabelsTaken:
        known = self._known(stream)
        if request not in known.requests:
            raise UnknownRequestError(f"no request {request!r}")
        if len(labels) != known.requests[request] or max(labels) >= self.classes:
            raise InputError("expected a label for each row")
        known.labels[request] = list(labels)
        return LabelsTaken(request, len(labels), 0)

    def reset(self, stream: str) -> None:
        self._known(stream).snapshots.clear()

    def release(self, stream: str) -> None:
        self._known(stream).guard_holds = False

    def rollback(self, stream: str, steps: int = 1) -> str:
        snapshots = self._known(stream).snapshots
        if steps > len(snapshots):
            raise UnknownSnapshotError(f"there are {len(snapshots)} snapshots, not {steps}")
        del snapshots[len(snapshots) - steps + 1 :]
        return snapshots[-1]

    def snapshot(self, stream: str) -> str:
        known = self._known(stream)
        known.snapshots.append(f"batch-{known.batches}")
        return known.snapshots[-1]

    def set_mode(self, stream: str, mode: Mode) -> None:
        self._known(stream).mode = mode

    def streams(self) -> list[StreamStatus]:
        return [self.status(name) for name in sorted(self.held_streams)]

    def status(self, stream: str) -> StreamStatus:
        known = self._known(stream)
        return StreamStatus(
            name=stream,
            mode=known.mode,
            resident=stream not in ("asleep", "forgotten"),
            batches=known.batches,
            samples=known.samples,
            last_seen=1e9,
            guard="no reason to act",
            gauges={} if stream == "forgotten" else {"accuracy": 0.9, "accuracy_low": float("nan")},
            events=[GuardEvent(1e9, 1, "hold", "collapse", "one class")],
            snapshots=tuple(known.snapshots),
        )

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        known = self._known(stream)
        return [
            {
                **dict.fromkeys(("low", "high", "source_accuracy", "confidence", "entropy", "agreement")),
                "index": place,
                "time": 1e9 + place,
                "samples": place,
                "accuracy": float("nan"),
                "inside": True,
                "temperature": 1.5,
                "histogram": [0.5, 0.5],
            }
            for place in range(since + 1, known.batches + 1)
        ]

    def close(self) -> None:
        self.closed, self.ready = True, False


LOCAL = "http://127.0.0.1:8000"
NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}


def client_of(service: FakeService, url: str = LOCAL, **options: Any) -> TestClient:
    return TestClient(create_app(service, **options), base_url=url)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def picture(kind: str = "PNG", size: tuple[int, int] = (4, 4), mode: str = "RGB", colour: Any = 0) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, kind)
    return file.getvalue()
