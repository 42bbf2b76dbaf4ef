"""The learner: the one thread that owns the adapter, answers batches with it and lets it learn."""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.core.export import SourceModel, masked
from equipoise.core.record import Step
from equipoise.production.server.answers import Answered, AnswerLog
from equipoise.production.server.batch_answer import Learned
from equipoise.production.server.batching import Request, RequestQueue, Task
from equipoise.production.server.busy_share import BusyShare
from equipoise.production.server.inputs import check_sample
from equipoise.production.server.interface import Mode, Prediction
from equipoise.production.server.limits import Limits
from equipoise.production.server.replies import refusal_of, reply
from equipoise.production.server.served_stream import Live, Stream
from equipoise.production.server.stream_cache import Residents

_LOG = logging.getLogger(__name__)

_TICK = 1.0
"""Seconds after which a learner without work looks for idle streams."""

_BUSY = 2 / 3
"""The share of its time that the learner works, from which on several clients at once count as load."""

_REFRESH = 8
"""Batches of a stream between two readings of the source model's temperature, for answers without a step."""


class Learner:
    """Answers batches from a queue until it is closed.

    Args:
        adapter: that all streams share; nobody else may use it.
        residents: the streams.
        queue: of the requests.
        answers: where answers are remembered.
        source: a copy of the source model.
        limits: of the service.
    """

    def __init__(
        self,
        adapter: Adapter,
        residents: Residents,
        queue: RequestQueue,
        answers: AnswerLog,
        source: SourceModel,
        limits: Limits,
    ) -> None:
        self._adapter, self._residents, self._queue = adapter, residents, queue
        self._answers, self._source, self._limits = answers, source, limits
        self._taken: set[tuple[tuple[int, ...], torch.dtype]] = set()
        self._busy = BusyShare()

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
        if source is None and (stream.labels or stream.mode != "adapted"):
            source = self._source(inputs)  # labels, and gauges while nothing is learned, compare both models
        self._refresh(stream)
        outcome = Learned(
            given=adapted,
            adapted=adapted,
            source=source,
            step=step,
            temperature=adapter.temperature if step is None else step.temperature,
            accuracy=adapter.accuracy if step is None else step.accuracy,
            source_accuracy=stream.source_accuracy if step is None else step.source_accuracy,
            answered_by=adapter.answered_by if step is None else step.answered_by,
            reason=_reason(stream.mode, live, step, learns),
            batch=live.guard.batch,
        )
        if stream.mode != "shadow" or source is None:
            return outcome
        return outcome.by_source(source, stream.source_temperature)

    def _refresh(self, stream: Stream) -> None:
        """Note how the source model would answer: always in the shadow, now and then for late answers."""
        if stream.mode == "shadow" or stream.batches % _REFRESH == _REFRESH - 1:
            stream.source_temperature = self._adapter.source_temperature
            stream.source_accuracy = self._adapter.source_accuracy

    def _deliver(self, stream: Stream, requests: Sequence[Request], outcome: Learned) -> None:
        """Give each request its rows, and count the batch."""
        parts = _split(stream.name, outcome, [request.rows for request in requests])
        stream.shape = stream.shape or tuple(requests[0].inputs.shape[1:])
        tokens = [request.token for request in requests]
        names = self._answers.add(dict(zip(tokens, parts, strict=True)))
        late = []
        for request, name, part in zip(requests, names, parts, strict=True):
            if request.claim():
                request.future.set_result(_reply(stream, name, part.given, outcome))
            elif not request.future.cancelled():
                late.append(request)
        self._count(stream, outcome)
        self._observe(stream, requests, outcome, late)
        self._save_if_due(stream)

    def _observe(
        self, stream: Stream, requests: Sequence[Request], outcome: Learned, late: Sequence[Request]
    ) -> None:
        """Show the monitor the answers that clients got: those to `late` requests are the source model's."""
        if stream.live is None:
            return
        monitor, events = stream.live.monitor, stream.live.fresh_events()
        by_source = outcome
        if late:
            source = outcome.source
            if source is None:
                source = self._source(torch.cat([request.inputs for request in requests]))
            by_source = outcome.by_source(source, stream.source_temperature)
        for group, answer in (([r for r in requests if r not in late], outcome), (late, by_source)):
            if group:
                own = [torch.full((request.rows,), request in group) for request in requests]
                part, sizes = answer.rows(torch.cat(own)), {request.token: request.rows for request in group}
                monitor.observe(part.given, part.record(), request=sizes, events=events)
                events = []
        stream.live.changes += 1

    def _count(self, stream: Stream, outcome: Learned) -> None:
        """Count a batch."""
        stream.batches, stream.samples, stream.last_seen = (
            stream.batches + 1,
            stream.samples + len(outcome.given),
            time.time(),
        )
        stream.unlearned = 0 if outcome.step is not None else stream.unlearned + 1
        stream.unsaved += 1

    def _save_if_due(self, stream: Stream) -> None:
        live = stream.live
        if live is not None and (stream.unsaved >= self._limits.save_every or live.newest != live.saved):
            self._residents.try_save(stream)


def _split(stream: str, outcome: Learned, sizes: list[int]) -> list[Answered]:
    """The logits of each request."""
    given, adapted = outcome.given.split(sizes), outcome.adapted.split(sizes)
    source = [None] * len(sizes) if outcome.source is None else outcome.source.split(sizes)
    return [
        Answered(stream, one, one if outcome.of_adapter else two, three, outcome.batch)
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
    """The reason why a batch was not learned from, or rows of it were set aside."""
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
