"""The learner: the one thread that owns the adapter, answers batches with it and lets it learn."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration.rehearsal import Estimate
from equipoise.core.record import Step
from equipoise.serving.answers import Answered, AnswerLog
from equipoise.serving.batching import Request, RequestQueue, Task
from equipoise.serving.busy_share import BusyShare
from equipoise.serving.inputs import check_sample
from equipoise.serving.interface import Mode, Prediction
from equipoise.serving.limits import Limits
from equipoise.serving.replies import refusal_of, reply
from equipoise.serving.residents import Residents
from equipoise.serving.source_model import SourceAnswers, masked
from equipoise.serving.stream import Live, Stream

_LOG = logging.getLogger(__name__)

_TICK = 1.0
"""Seconds after which a learner without work looks for idle streams."""

_BUSY = 2 / 3
"""The share of its time that the learner works, from which on several clients at once count as load."""

_REFRESH = 8
"""Batches of a stream between two readings of the source model's temperature, for answers without a step."""


@dataclass(frozen=True)
class Learned:
    """The answer to a batch of one stream.

    Attributes:
        given: the logits that clients get, (N, C), on the host.
        adapted: those of the adapter.
        source: those of the source model, where it was asked.
        step: the record of the batch, where it was learned from.
        temperature: the divisor of `given`.
        accuracy: the estimated accuracy of `given`.
        answered_by: "student" or "source".
        reason: why nothing was learned, or rows were set aside.
    """

    given: Tensor
    adapted: Tensor
    source: Tensor | None
    step: Step | None
    temperature: float | None
    accuracy: Estimate | None
    answered_by: Literal["student", "source"]
    reason: str

    @property
    def learned(self) -> bool:
        """Whether the adapter has learned from the batch."""
        return self.step is not None and self.step.updated


class Learner:
    """Answers batches from a queue until it is closed.

    Args:
        adapter: that all streams share; nobody else may use it.
        residents: the streams.
        queue: of the requests.
        answers: where answers are remembered.
        source: a copy of the source model.
        limits: of the service.

    Attributes:
        classes: the number of classes; 0 before the first answer.
    """

    def __init__(
        self,
        adapter: Adapter,
        residents: Residents,
        queue: RequestQueue,
        answers: AnswerLog,
        source: SourceAnswers,
        limits: Limits,
    ) -> None:
        self._adapter, self._residents, self._queue = adapter, residents, queue
        self._answers, self._source, self._limits = answers, source, limits
        self._taken: set[tuple[tuple[int, ...], torch.dtype]] = set()
        self._busy = BusyShare()
        self.classes = 0

    def run(self) -> None:
        """Work until the queue is closed and empty."""
        free = time.monotonic()
        while (job := self._queue.take(_TICK)) is not None:
            begun = time.monotonic()
            if isinstance(job, Task):
                _perform(job)
            else:
                self._work(job)
            done = time.monotonic()
            self._busy.add(begun - free, done - begun)
            free = done

    def _work(self, requests: list[Request]) -> None:
        """Answer a batch; without one, evict the streams that are idle."""
        try:
            if requests:
                self._answer(requests)
            else:
                self._residents.evict_idle()
        except Exception as error:  # the thread must not end: without it nothing would be learned again
            _LOG.exception("the learner goes on after an error")
            _fail(requests, error)

    def _answer(self, requests: list[Request]) -> None:
        """Answer a batch; if the model fails on it, each request on its own."""
        known = self._residents.streams.get(requests[0].stream)
        try:
            stream = self._stream(requests[0])
            learns = stream.mode != "hold" and (self._is_due(stream) or not self._is_pressed(requests))
            if not learns:  # those that the source model has answered were only for learning
                requests = self._queue.promise(requests)
            outcome = self._outcome(stream, requests, learns=learns) if requests else None
        except Exception as error:
            self._retry(requests, known, error)
            return
        if outcome is None:
            return
        try:
            self._deliver(stream, requests, outcome)
        except Exception as error:  # the batch is learned from: it must not be answered again
            _fail(requests, error)

    def _retry(self, requests: list[Request], known: Stream | None, error: Exception) -> None:
        """Answer each request of a batch that failed on its own; a stream that was made for it is no more."""
        made = self._residents.streams.get(requests[0].stream)
        if made is not None and known is None:
            self._residents.discard(made)
        if len(requests) == 1:
            _fail(requests, error)
        else:
            for request in requests:
                self._answer([request])

    def _is_pressed(self, requests: Sequence[Request]) -> bool:
        """Whether other clients wait, or several at once keep the thread busy."""
        return self._queue.pressing or (len(requests) > 1 and self._busy.value > _BUSY)

    def _is_due(self, stream: Stream) -> bool:
        return stream.unlearned >= self._limits.unlearned

    def _stream(self, request: Request) -> Stream:
        """The stream of a request; a new one only for samples of a shape that the source model can answer."""
        stream = self._residents.streams.get(request.stream)
        shape = tuple(request.inputs.shape[1:])
        if stream is None:
            if (shape, request.inputs.dtype) not in self._taken:
                self._source(request.inputs)
                self._taken.add((shape, request.inputs.dtype))
            stream = self._residents.create(request.stream, shape)
        self._residents.bring(stream)  # from disk only then is its shape known
        check_sample(request.inputs, stream.shape or shape, stream.name)
        return stream

    def _outcome(self, stream: Stream, requests: Sequence[Request], *, learns: bool) -> Learned:
        inputs = torch.cat([request.inputs for request in requests])
        live, adapter = self._residents.bring(stream), self._adapter
        device_inputs = inputs.to(adapter.device)
        before = live.guard.last
        logits = live.guard(device_inputs) if learns else live.guard.predict(device_inputs)
        last = live.guard.last
        step = last if learns and last is not before else None
        adapted = masked(logits.detach().float().cpu(), inputs)
        source = None if step is None or step.source_logits is None else step.source_logits.float().cpu()
        if source is None and stream.labels:
            source = self._source(inputs)  # labels compare both models, and this stream has labels
        reason = _reason(stream.mode, live, step, learns)
        if stream.mode == "shadow":
            source = self._source(inputs) if source is None else source
            return self._shadow(stream, adapted, source, step, reason)
        self._refresh(stream)
        if step is not None:
            return Learned(
                adapted, adapted, source, step, step.temperature, step.accuracy, step.answered_by, reason
            )
        by: Literal["student", "source"] = "source" if adapter._respond.source_answers else "student"
        return Learned(adapted, adapted, source, None, adapter.temperature, adapter.accuracy, by, reason)

    def _shadow(
        self, stream: Stream, adapted: Tensor, source: Tensor, step: Step | None, reason: str
    ) -> Learned:
        """The source model's answer, tempered, with what the adapter has learned from the batch."""
        adapter = self._adapter
        stream.source_temperature, stream.source_accuracy = (
            adapter.source_temperature,
            adapter.source_accuracy,
        )
        temperature = stream.source_temperature
        given = source if temperature is None else source / temperature
        return Learned(given, adapted, source, step, temperature, stream.source_accuracy, "source", reason)

    def _refresh(self, stream: Stream) -> None:
        """Note now and then how the source model would answer, for requests that are answered by it."""
        if stream.batches % _REFRESH == _REFRESH - 1:
            stream.source_temperature = self._adapter.source_temperature
            stream.source_accuracy = self._adapter.source_accuracy

    def _deliver(self, stream: Stream, requests: Sequence[Request], outcome: Learned) -> None:
        """Give each request its rows, and count the batch."""
        sizes, self.classes = [request.rows for request in requests], outcome.given.shape[1]
        parts = _split(stream.name, outcome, sizes)
        stream.shape = stream.shape or tuple(requests[0].inputs.shape[1:])
        tokens = [request.token for request in requests]
        names = self._answers.add(dict(zip(tokens, parts, strict=True)))
        for request, name, part in zip(requests, names, parts, strict=True):
            if request.claim():
                request.future.set_result(_reply(stream, name, part.given, outcome))
        self._count(stream, outcome, dict(zip(tokens, sizes, strict=True)))

    def _count(self, stream: Stream, outcome: Learned, sizes: dict[str, int]) -> None:
        """Count a batch, whose requests have so many rows by their tokens, and perhaps write the stream."""
        live = stream.live
        stream.batches, stream.samples, stream.last_seen = (
            stream.batches + 1,
            stream.samples + sum(sizes.values()),
            time.time(),
        )
        stream.unlearned = 0 if outcome.step is not None else stream.unlearned + 1
        stream.unsaved += 1
        if live is not None:
            fresh = live.fresh_events()
            live.monitor.observe(outcome.given, outcome.step, request=sizes, events=fresh)
            if stream.unsaved >= self._limits.save_every or live.newest != live.saved:
                self._residents.try_save(stream)


def _split(stream: str, outcome: Learned, sizes: list[int]) -> list[Answered]:
    """The logits of each request."""
    given, adapted = outcome.given.split(sizes), outcome.adapted.split(sizes)
    source = [None] * len(sizes) if outcome.source is None else outcome.source.split(sizes)
    same = outcome.given is outcome.adapted
    return [
        Answered(stream, one, one if same else two, three)
        for one, two, three in zip(given, adapted, source, strict=True)
    ]


def _reply(stream: Stream, request: str, logits: Tensor, outcome: Learned) -> Prediction:
    return reply(
        request,
        stream.name,
        logits,
        temperature=outcome.temperature,
        accuracy=outcome.accuracy,
        answered_by=outcome.answered_by,
        mode=stream.mode,
        learned=outcome.learned,
        reason=outcome.reason,
    )


def _reason(mode: Mode, live: Live, step: Step | None, learns: bool) -> str:
    """Why a batch was not learned from, or rows of it were set aside."""
    if step is not None:
        return step.reason
    if mode == "hold":
        return "the mode of the stream is hold"
    if not learns:
        return "requests were waiting: learned from a part of the batches"
    return "held by the guard" if live.guard.holding else "the guard acted on this batch"


def _perform(task: Task) -> None:
    """Run a task, and pass on its result or its error."""
    if not task.future.set_running_or_notify_cancel():
        return
    try:
        task.future.set_result(task.call())
    except Exception as error:
        task.future.set_exception(error)


def _fail(requests: Sequence[Request], error: Exception) -> None:
    """Pass an error on to the requests that have no answer yet."""
    for request in requests:
        if request.claim():
            request.future.set_exception(refusal_of(error))
