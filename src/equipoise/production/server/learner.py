"""The two threads that answer: the learner, which owns the adapter, and the source model when it is late."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration.expected import Expectations, Selected
from equipoise.calibration.sets import sets
from equipoise.core.export import masked
from equipoise.core.record import Step
from equipoise.errors import EquipoiseError
from equipoise.network.forward import logits_of
from equipoise.production.guard.guarded import unlearned_step
from equipoise.production.server.answers import Answered, AnswerLog
from equipoise.production.server.errors import InputError, ServiceError, StorageError
from equipoise.production.server.inputs import CheckedSource, check_sample
from equipoise.production.server.interface import NOTHING_ASKED, Asked, Prediction, ToActUpon
from equipoise.production.server.limits import Limits
from equipoise.production.server.request_queue import Request, RequestQueue, Task
from equipoise.production.server.served_stream import Live, ServedStream
from equipoise.production.server.stream_cache import StreamCache

_LOG = logging.getLogger(__name__)

SPAN = 1.0
"""Seconds over which the share is averaged."""

_TICK = 1.0
"""Seconds after which a learner without work looks for idle streams."""

_BUSY = 2 / 3
"""The share of its time that the learner works, from which on several clients at once count as load."""

_HOLDS = "the mode of the stream is hold"

_UNDER_LOAD = "requests were waiting: learned from a part of the batches"

_REFRESH = 8
"""Batches of a stream between two readings of the source model's temperature, for answers without a step."""


class BusyShare:
    """An exponential average of work over work and waiting; 0 at the start.

    Attributes:
        value: the share, from 0 to 1.
    """

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, waited: float, worked: float) -> None:
        """Count seconds of waiting, and the seconds of work after them."""
        passed = waited + worked
        if passed > 0:
            kept = math.exp(-passed / SPAN)
            self.value = kept * self.value + (1 - kept) * worked / passed


def reply(request: str, stream: str, logits: Tensor, **facts: Any) -> Prediction:
    """The answer to a request from its tempered logits (N, C) on the host; `facts` are the other fields."""
    probabilities = logits.softmax(1).numpy()
    answered = np.isfinite(probabilities).all(1)
    probabilities = np.where(answered[:, None], probabilities, np.float32(np.nan))
    classes = np.where(answered, probabilities.argmax(1), -1)
    return Prediction(request, stream, classes.tolist(), probabilities, **facts)


def asked_facts(asked: Asked, logits: Tensor, expected: Expectations | None) -> dict[str, Any]:
    """The fields of an answer, of calibrated logits (N, C), that a request asked for.

    Where it is not known what is expected of the model's answers, every class is possible and nothing is to
    be acted upon.
    """
    facts: dict[str, Any] = {}
    if asked.coverage is not None:
        threshold = math.inf if expected is None else expected.set_threshold("lac", asked.coverage)
        facts["sets"] = [row.nonzero().flatten().tolist() for row in sets(logits, threshold)]
    if asked.accuracy is not None:
        nothing = Selected(math.inf, 0.0, math.nan)
        found = nothing if expected is None else expected.selected(asked.accuracy)
        act = logits.softmax(1).amax(1) >= found.confidence
        facts["decision"] = ToActUpon(act.tolist(), found.share, reached=found.share > 0)
    return facts


def refusal_of(error: Exception) -> ServiceError:
    """The error of a service for one of the adapter or of the model."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"the state folder cannot be used: {error}")
    of_inputs = isinstance(error, (EquipoiseError, RuntimeError, ValueError, TypeError, LookupError))
    kind = InputError if of_inputs else ServiceError
    return kind(f"the model cannot answer these inputs: {type(error).__name__}: {error}")


class LateAnswers:
    """Answers requests that are past their deadline until the queue is closed; in a thread of its own.

    The source model answers, divided by the temperature that was last known for it in the stream. The
    requests stay in the queue, to be learned from when there is time.

    Args:
        queue: of the requests.
        source: a copy of the source model.
        answers: where answers are remembered.
        streams: all of them, by name; only read.
    """

    def __init__(
        self,
        queue: RequestQueue,
        source: CheckedSource,
        answers: AnswerLog,
        streams: Mapping[str, ServedStream],
    ) -> None:
        self._queue, self._source, self._answers, self._streams = queue, source, answers, streams

    def run(self) -> None:
        """Work until the queue is closed and no request waits."""
        while (requests := self._queue.take_late()) is not None:
            self._answer(requests)

    def _answer(self, requests: list[Request]) -> None:
        """Answer requests of one shape together; if the model fails, each on its own."""
        if not requests:
            return
        try:
            logits = self._source(torch.cat([request.inputs for request in requests]))
            for request, rows in zip(
                requests, logits.split([request.rows for request in requests]), strict=True
            ):
                self._reply(request, rows)
        except Exception as error:
            if len(requests) == 1:
                requests[0].future.set_exception(refusal_of(error))
                return
            for request in requests:
                if not request.future.done():
                    self._answer([request])

    def _reply(self, request: Request, logits: torch.Tensor) -> None:
        stream = self._streams.get(request.stream)
        temperature = None if stream is None else stream.source_temperature
        given = logits if temperature is None else logits / temperature
        (name,) = self._answers.add({request.token: Answered(request.stream, given, None, logits)})
        request.future.set_result(
            reply(
                name,
                request.stream,
                given,
                temperature=temperature,
                accuracy=None if stream is None else stream.source_accuracy,
                answered_by="source",
                mode="adapted" if stream is None else stream.mode,
                learned=False,
                reason="learning took longer than the latency bound: the source model answered",
                **asked_facts(request.asked, given, None if stream is None else stream.source_expected),
            )
        )


class Learner:
    """Answers batches from a queue until it is closed.

    Args:
        adapter: that all streams share; nobody else may use it.
        cache: the streams.
        queue: of the requests.
        answers: where answers are remembered.
        source: a copy of the source model.
        limits: of the service.
    """

    def __init__(
        self,
        adapter: Adapter,
        cache: StreamCache,
        queue: RequestQueue,
        answers: AnswerLog,
        source: CheckedSource,
        limits: Limits,
    ) -> None:
        self._adapter, self._cache, self._queue = adapter, cache, queue
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
                self._cache.evict_idle()
        except Exception as error:  # the thread must not end: without it nothing would be learned again
            _LOG.exception("the learner goes on after an error")
            _fail(requests, error)

    def _answer(self, requests: list[Request]) -> None:
        """Answer a batch; if the model fails on it, each request on its own."""
        known = self._cache.streams.get(requests[0].stream)
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
            self._deliver(stream, requests, *outcome, learns=learns)
        except Exception as error:  # the batch is learned from: it must not be answered again
            _fail(requests, error)

    def _retry(self, requests: list[Request], known: ServedStream | None, error: Exception) -> None:
        """Answer each request of a batch that failed on its own; a stream that was made for it is no more."""
        made = self._cache.streams.get(requests[0].stream)
        if made is not None and known is None:
            self._cache.discard(made)
        if len(requests) == 1:
            _fail(requests, error)
        else:
            for request in requests:
                self._answer([request])

    def _is_pressed(self, requests: Sequence[Request]) -> bool:
        """Whether other clients wait, or several at once keep the thread busy."""
        return self._queue.pressing or (len(requests) > 1 and self._busy.value > _BUSY)

    def _is_due(self, stream: ServedStream) -> bool:
        return stream.unlearned >= self._limits.unlearned

    def _stream(self, request: Request) -> ServedStream:
        """The stream of a request; a new one only for samples of a shape that the source model can answer."""
        stream = self._cache.streams.get(request.stream)
        shape = tuple(request.inputs.shape[1:])
        if stream is None:
            if (shape, request.inputs.dtype) not in self._taken:
                self._source(request.inputs)
                self._taken.add((shape, request.inputs.dtype))
            stream = self._cache.create(request.stream, shape)
        self._cache.bring(stream)  # from disk only then is its shape known
        check_sample(request.inputs, stream.shape or shape, stream.name)
        return stream

    def _outcome(
        self, stream: ServedStream, requests: Sequence[Request], *, learns: bool
    ) -> tuple[Answered, Step]:
        """The answer to a batch and its record."""
        inputs = torch.cat([request.inputs for request in requests])
        live, adapter = self._cache.bring(stream), self._adapter
        device_inputs, answers = inputs.to(adapter.device), live.guard or adapter
        logits = logits_of(answers(device_inputs) if learns else answers.predict(device_inputs))
        step = answers.last if learns else None
        adapted = masked(logits.detach().float().cpu(), inputs)
        source = None if step is None or step.source_logits is None else step.source_logits.float().cpu()
        if source is None and (stream.labels or stream.mode != "adapted"):
            source = self._source(inputs)  # labels, and gauges while nothing is learned, compare both models
        watched = source if live.source_window is not None or _asks(requests) else None
        self._refresh(stream, live, watched, seen=step is not None and len(step.ids) > 0)
        if step is None:
            reason = _HOLDS if stream.mode == "hold" else _UNDER_LOAD
            step = unlearned_step(adapter, adapted, reason, stream.source_accuracy)
        number = live.guard.batch if live.guard else stream.batches + 1
        answer = Answered(stream.name, adapted, adapted, source, number)
        if stream.mode != "shadow" or source is None:
            return answer, step
        return _by_source(stream, source, answer, step)

    def _refresh(self, stream: ServedStream, live: Live, source: Tensor | None, *, seen: bool) -> None:
        """Note how the source model would answer: always in the shadow, now and then for late answers.

        Its answers, where they are given, are taken into the window of those that decisions are made of.
        The adapter has `seen` the batch, or was held.
        """
        due = stream.mode == "shadow" or stream.batches % _REFRESH == _REFRESH - 1
        if due:
            stream.source_temperature = self._adapter.source_temperature
            stream.source_accuracy = self._adapter.source_accuracy
        heat = self._adapter.source_temperature if source is not None else None
        if source is None or heat is None:
            return
        live.source_window = self._adapter.source_window(live.source_window, source / heat, seen=seen)
        if due or stream.source_expected is None:
            stream.source_expected = self._adapter.source_expectations(live.source_window)

    def _deliver(
        self, stream: ServedStream, requests: Sequence[Request], answer: Answered, step: Step, *, learns: bool
    ) -> None:
        """Give each request its rows, and count the batch."""
        parts = answer.split([request.rows for request in requests])
        stream.shape = stream.shape or tuple(requests[0].inputs.shape[1:])
        tokens = [request.token for request in requests]
        names = self._answers.add(dict(zip(tokens, parts, strict=True)))
        expected = self._expected(stream, answer) if _asks(requests) else None
        late = []
        for request, name, part in zip(requests, names, parts, strict=True):
            facts = asked_facts(request.asked, part.given, expected)  # an error before the claim is told
            mine = request.claim()
            if mine:
                request.future.set_result(_reply(stream, name, part.given, step, facts))
            late.append(not mine and not request.future.cancelled())
        stream.batches, stream.samples, stream.last_seen = (
            stream.batches + 1,
            stream.samples + len(answer.given),
            time.time(),
        )
        stream.unlearned = 0 if learns else stream.unlearned + 1
        stream.unsaved += 1
        self._observe(stream, requests, late, answer, step)
        self._save_if_due(stream)

    def _expected(self, stream: ServedStream, answer: Answered) -> Expectations | None:
        """What is expected of decisions about an answer, of the model that gave it."""
        return self._adapter.expectations() if answer.adapted is answer.given else stream.source_expected

    def _observe(
        self,
        stream: ServedStream,
        requests: Sequence[Request],
        late: Sequence[bool],
        answer: Answered,
        step: Step,
    ) -> None:
        """Show the monitor the answers that clients got: those to `late` requests are the source model's."""
        if stream.live is None:
            return
        monitor, events = stream.live.monitor, stream.live.fresh_events()
        by_source = answer, step
        if any(late):
            source = answer.source
            if source is None:
                source = self._source(torch.cat([request.inputs for request in requests]))
            by_source = _by_source(stream, source, answer, step)
        sizes = torch.tensor([request.rows for request in requests])
        for is_late, (given, record) in ((False, (answer, step)), (True, by_source)):
            mask = torch.tensor([each == is_late for each in late])
            if mask.any():
                part = given.rows(mask.repeat_interleave(sizes))
                own = {r.token: r.rows for r, each in zip(requests, late, strict=True) if each == is_late}
                record = replace(record, source_logits=part.unserved)
                monitor.observe(part.given, record, request=own, events=events)
                events = []
        stream.live.changes += 1

    def _save_if_due(self, stream: ServedStream) -> None:
        live = stream.live
        if live is not None and (stream.unsaved >= self._limits.save_every or live.newest != live.saved):
            self._cache.try_save(stream)


def _asks(requests: Sequence[Request]) -> bool:
    """Whether a request asks for sets or a decision."""
    return any(request.asked != NOTHING_ASKED for request in requests)


def _by_source(stream: ServedStream, source: Tensor, answer: Answered, step: Step) -> tuple[Answered, Step]:
    """The same batch and its record, answered by the source model with these logits."""
    heat = stream.source_temperature
    step = replace(step, temperature=heat, accuracy=step.source_accuracy, answered_by="source")
    return answer.by_source(source, heat), step


def _reply(
    stream: ServedStream, request: str, logits: Tensor, step: Step, asked: dict[str, Any]
) -> Prediction:
    return reply(
        request,
        stream.name,
        logits,
        temperature=step.temperature,
        accuracy=step.accuracy,
        answered_by=step.answered_by,
        mode=stream.mode,
        learned=step.updated,
        reason=step.reason,
        **asked,
    )


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
