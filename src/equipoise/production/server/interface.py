"""The interface between the HTTP door and a service: `Service` in this process, or replicas on Ray."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from equipoise.calibration.rehearsal import Estimate

Mode = Literal["adapted", "shadow", "hold"]
"""The mode of a stream: the model that answers, and whether it is learned from.

"adapted": the adapter answers and learns. "shadow": the source model answers and the adapter learns. "hold":
the adapter answers as it is and learns nothing.
"""


@dataclass(frozen=True)
class Asked:
    """The wishes of a request beside classes and probabilities; they need a rehearsal.

    Attributes:
        coverage: of its prediction sets, in `given.COVERAGES_ASKED`; None where it asks for no sets.
        accuracy: of the answers to act upon, in `given.ACCURACIES_ASKED`; None where it asks for no decision.
    """

    coverage: float | None = None
    accuracy: float | None = None


NOTHING_ASKED = Asked()


@dataclass(frozen=True)
class ToActUpon:
    """The rows of an answer that are to be acted upon.

    Attributes:
        act: whether to act upon each row.
        answered_share: the estimated share of the recent stream that is acted upon.
        reached: whether the accuracy that was asked for can be reached; if not, nothing is acted upon.
    """

    act: Sequence[bool]
    answered_share: float
    reached: bool


@dataclass(frozen=True)
class Prediction:
    """The answer to one request.

    Attributes:
        request: the id of the request, by which labels can be sent later.
        stream: the name of the stream.
        classes: the class of each row; -1 where the row could not be answered (NaN in the input).
        probabilities: calibrated, (N, C) float32; NaN where the row could not be answered.
        temperature: the divisor of the logits; None without one.
        accuracy: that of the answers, estimated without labels; None without a rehearsal.
        answered_by: "student", the adapted model, or "source", the source model.
        mode: of the stream.
        learned: whether the stream was learned from with this batch before it was answered.
        reason: why it was not, or why rows were set aside; empty otherwise.
        sets: the classes of each row's prediction set, all of them where the row could not be answered; None
            where none were asked for.
        decision: the rows to act upon; None where that was not asked.
    """

    request: str
    stream: str
    classes: Sequence[int]
    probabilities: np.ndarray[Any, np.dtype[np.float32]]
    temperature: float | None
    accuracy: Estimate | None
    answered_by: Literal["student", "source"]
    mode: Mode
    learned: bool
    reason: str
    sets: Sequence[Sequence[int]] | None = None
    decision: ToActUpon | None = None


@dataclass(frozen=True)
class LabelsTaken:
    """Labels that a service has written to disk.

    Attributes:
        request: the id of the request.
        rows: the number of labels.
        right: how many of the answers were right.
    """

    request: str
    rows: int
    right: int


@dataclass(frozen=True)
class GuardEvent:
    """An action of the guard, or of a person, on a stream.

    Attributes:
        time: seconds since 1970.
        batch: the batch of the stream after which it happened.
        action: "hold", "release", "rollback", "reset", "snapshot" or "mode".
        trigger: the name of the trigger, or "request" where a person asked for it.
        reason: in words.
    """

    time: float
    batch: int
    action: str
    trigger: str
    reason: str


@dataclass(frozen=True)
class StreamStatus:
    """A stream as the page and the metrics show it.

    Attributes:
        name: of the stream.
        mode: of the stream.
        resident: whether its state is in memory; otherwise it is on disk, and what follows `last_seen` is as
            it was when the stream left memory, or empty where too many streams have left it since.
        batches: batches learned from or answered since the start of the stream.
        samples: samples of these batches.
        last_seen: time of the last request, seconds since 1970.
        guard: the guard's status in words.
        gauges: the monitor's gauges of the last window, by name.
        events: the last events, oldest first.
        snapshots: the names of snapshots that a rollback can go to, oldest first.
    """

    name: str
    mode: Mode
    resident: bool
    batches: int
    samples: int
    last_seen: float
    guard: str
    gauges: Mapping[str, float]
    events: Sequence[GuardEvent]
    snapshots: Sequence[str]


class ServiceLike(Protocol):
    """A service that the HTTP door can stand in front of; calls may come from any thread.

    All calls but `submit` return when they are done. They raise errors of `server.errors`.
    """

    @property
    def method(self) -> str:
        """The name of the adapting method."""

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""

    def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Future[Prediction]:
        """Queue a batch of inputs (N, …); the future has the answer, with what was asked, or the error."""

    def label(self, stream: str, request: str, labels: Sequence[int]) -> LabelsTaken:
        """Take the labels of a request; on disk when it returns."""

    def reset(self, stream: str) -> None:
        """Go back to the source model."""

    def rollback(self, stream: str, steps: int = 1) -> str:
        """Go back by a number of snapshots; returns the name of the one gone back to."""

    def release(self, stream: str) -> None:
        """Let a stream that its guard holds learn again; the mode of the stream stays."""

    def snapshot(self, stream: str) -> str:
        """Write a snapshot now; returns its name, on disk when it returns."""

    def set_mode(self, stream: str, mode: Mode) -> None:
        """Change the mode of a stream."""

    def streams(self) -> list[StreamStatus]:
        """All streams, by name."""

    def status(self, stream: str) -> StreamStatus:
        """One stream."""

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        """Rows of the stream's curves with `index` > since, oldest first, bounded in number.

        A row has index, time, samples, accuracy, low, high, inside, source_accuracy, confidence, temperature,
        entropy, agreement and histogram (a list of shares, one a class); None where there is none.
        """

    def close(self) -> None:
        """Take no more requests, answer those that came, save every stream."""
