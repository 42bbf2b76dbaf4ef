"""Answers by the source model, for requests that the learner has not answered in time."""

from collections.abc import Mapping

import torch

from equipoise.core.export import SourceModel
from equipoise.production.server.answers import Answered, AnswerLog
from equipoise.production.server.batching import Request, RequestQueue
from equipoise.production.server.replies import refusal_of, reply
from equipoise.production.server.served_stream import Stream


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
        self, queue: RequestQueue, source: SourceModel, answers: AnswerLog, streams: Mapping[str, Stream]
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
            )
        )
