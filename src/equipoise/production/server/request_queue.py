"""The queue of a service: bounded, with requests of one stream joined to batches."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from equipoise.production.server.answers import new_token
from equipoise.production.server.errors import BusyError, ClosedError
from equipoise.production.server.interface import NOTHING_ASKED, Asked, Prediction


@dataclass(eq=False)
class Request:
    """A request that waits for its answer.

    Attributes:
        stream: the name of the stream.
        inputs: the samples.
        deadline: when the source model answers in place of the learner; of `time.monotonic`.
        asked: what the answer shall have beside classes and probabilities.
        future: gets the answer.
        token: that ids of answers to it end in, whichever thread answers.
        promised: whether the learner is answering it without learning, so that the source model need not.
    """

    stream: str
    inputs: Tensor
    deadline: float
    asked: Asked = NOTHING_ASKED
    future: Future[Prediction] = field(default_factory=Future)
    token: str = field(default_factory=new_token)
    promised: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _claimed: bool = False

    @property
    def rows(self) -> int:
        """The number of samples."""
        return len(self.inputs)

    @property
    def claimed(self) -> bool:
        """Whether a thread has the answer, or is about to."""
        return self._claimed

    def claim(self) -> bool:
        """Whether the caller is the first to ask, and so the one that answers."""
        with self._lock:
            first, self._claimed = not self._claimed, True
        return first and self.future.set_running_or_notify_cancel()


@dataclass(frozen=True)
class Task:
    """A call that runs between two batches, in the thread of the learner."""

    call: Callable[[], Any]
    future: Future[Any]


class RequestQueue:
    """Requests in the order of their arrival; batches hold requests of one stream and one shape.

    The next batch is of the stream whose request has waited longest. Tasks go before batches. A request that
    the source model has answered in the meantime stays, to be learned from, until its place is needed.

    Args:
        waiting: the most requests.
        rows: the most samples in a batch.
        waiting_bytes: the most bytes of their samples; one request alone may have more.
    """

    def __init__(self, waiting: int, rows: int, waiting_bytes: int) -> None:
        self._waiting, self._rows, self._waiting_bytes = waiting, rows, waiting_bytes
        self._requests: deque[Request] = deque()
        self._tasks: deque[Task] = deque()
        self._late: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def pressing(self) -> bool:
        """Whether a request waits that has no answer yet."""
        with self._changed:
            return any(not request.claimed for request in self._requests)

    def put(self, request: Request) -> None:
        """Add a request; BusyError if the queue is full of requests that have no answer yet."""
        with self._changed:
            self._check_open()
            while self._requests and self._is_full(request):
                answered = next((each for each in self._requests if each.claimed), None)
                if answered is None:
                    raise BusyError(
                        f"{len(self._requests)} requests of {self._bytes} bytes are waiting, of at most "
                        f"{self._waiting} and {self._waiting_bytes}: try again later"
                    )
                self._requests.remove(answered)
            self._requests.append(request)
            self._late.append(request)
            self._changed.notify_all()

    def _is_full(self, request: Request) -> bool:
        bytes_then = self._bytes + request.inputs.nbytes
        return len(self._requests) >= self._waiting or bytes_then > self._waiting_bytes

    @property
    def _bytes(self) -> int:
        return sum(request.inputs.nbytes for request in self._requests)

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Add a task."""
        with self._changed:
            self._check_open()
            task = Task(call, Future())
            self._tasks.append(task)
            self._changed.notify_all()
        return task.future

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the service is stopping and takes no more requests")

    def take(self, timeout: float) -> Task | list[Request] | None:
        """The next task or batch; an empty list after the timeout, None when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._requests or self._closed, timeout)
            if self._tasks:
                return self._tasks.popleft()
            if self._requests:
                return self._batch()
            return None if self._closed else []

    def _batch(self) -> list[Request]:
        first, batch, kept, rows = self._requests[0], [], deque[Request](), 0
        shape, full = first.inputs.shape[1:], False
        for request in self._requests:
            same = request.stream == first.stream
            fits = request.inputs.shape[1:] == shape and request.inputs.dtype == first.inputs.dtype
            full = full or (same and (not fits or rows + request.rows > self._rows) and request is not first)
            if same and not full:
                batch.append(request)
                rows += request.rows
            else:
                kept.append(request)
        self._requests = kept
        return batch

    def promise(self, requests: Sequence[Request]) -> list[Request]:
        """Promise an answer without learning to the requests of a batch that have none, and return them."""
        with self._changed:
            waiting = [request for request in requests if not request.claimed]
            for request in waiting:
                request.promised = True
        return waiting

    def take_late(self) -> list[Request] | None:
        """Wait for requests that are past their deadline, and claim them; None when closed and empty.

        They are of one shape, of any streams, and together have at most as many samples as a batch.
        """
        with self._changed:
            while True:
                while self._late and (self._late[0].claimed or self._late[0].promised):
                    self._late.popleft()
                if not self._late and self._closed:
                    return None
                wait = self._late[0].deadline - time.monotonic() if self._late else None
                if wait is not None and wait <= 0:
                    break
                self._changed.wait(wait)
            return self._claim_late()

    def _claim_late(self) -> list[Request]:
        first, taken, rows = self._late[0], list[Request](), 0
        now, kind = time.monotonic(), (first.inputs.shape[1:], first.inputs.dtype)
        while self._late and self._late[0].deadline <= now:
            request = self._late[0]
            other = (request.inputs.shape[1:], request.inputs.dtype) != kind
            if taken and (other or rows + request.rows > self._rows):
                break
            self._late.popleft()
            if not request.promised and request.claim():
                taken.append(request)
                rows += request.rows
        return taken

    def close(self) -> None:
        """Take no more; those that are in the queue are still given out."""
        with self._changed:
            self._closed = True
            self._requests = deque(request for request in self._requests if not request.claimed)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a thread that waits for late requests look again: the learner has answered all of them."""
        with self._changed:
            self._changed.notify_all()
