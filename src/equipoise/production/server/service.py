"""A classifier that adapts, for many streams and many clients at once, in this process."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import OptionError, StateError
from equipoise.factory import create
from equipoise.production.server.answers import AnswerLog, LabelEntry, labels_hash
from equipoise.production.server.errors import (
    ClosedError,
    InputError,
    StorageError,
    TooManyStreamsError,
    UnknownRequestError,
    UnknownSnapshotError,
    UnknownStreamError,
)
from equipoise.production.server.inputs import (
    CheckedSource,
    check_asked,
    check_labels,
    check_name,
    check_sample,
    checked_inputs,
    takes_indices,
)
from equipoise.production.server.interface import (
    NOTHING_ASKED,
    Asked,
    LabelsTaken,
    Mode,
    Prediction,
    StreamStatus,
)
from equipoise.production.server.learner import LateAnswers, Learner
from equipoise.production.server.limits import Limits
from equipoise.production.server.model_factory import load_factory
from equipoise.production.server.request_queue import Request, RequestQueue
from equipoise.production.server.served_stream import Live, ServedStream
from equipoise.production.server.store import StateFolder
from equipoise.production.server.stream_cache import StreamCache

DEFAULT_LIMITS = Limits()
_MODES = ("adapted", "shadow", "hold")
_Result = TypeVar("_Result")


class Service:
    """Answers batches of many named streams with one adapter, each stream with a state of its own.

    One thread owns the adapter and learns; another answers with the source model when the first is late.
    Streams are made on first use, written to disk when they are idle and read again bit for bit. A service
    that is opened on the folder of an earlier one goes on where that one was last saved.

    Args:
        adapter: shared by all streams, and reset; nothing else may use it from now on.
        state_folder: where streams, snapshots, labels and answers are kept; for one process at a time.
        limits: on requests, waiting, streams, memory and disk.
        guarded: whether a guard watches each stream (`equipoise.Guarded`).
    """

    def __init__(
        self,
        adapter: Adapter,
        state_folder: str | os.PathLike[str],
        *,
        limits: Limits = DEFAULT_LIMITS,
        guarded: bool = True,
    ) -> None:
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an equipoise adapter, got {type(adapter).__name__}")
        self._adapter, self._limits = adapter, limits
        self._indices = takes_indices(adapter.student)
        self._folder = StateFolder(state_folder, adapter)
        try:
            self._answers = AnswerLog(self._folder.path / "answers", limits.remembered_bytes)
            self._cache = StreamCache(adapter, self._folder, self._answers, limits, guarded=guarded)
        except OSError as error:
            self._folder.close()
            raise StorageError(f"{self._folder.path}: the state folder cannot be used: {error}") from error
        except BaseException:
            self._folder.close()
            raise
        self._queue = RequestQueue(limits.waiting, limits.rows, limits.waiting_bytes)
        measured = adapter.source.inputs.get("shape") if adapter.source else None
        shape = None if measured is None else tuple(measured.tolist())
        source = CheckedSource(adapter.source_model(), shape)
        self._learner = Learner(adapter, self._cache, self._queue, self._answers, source, limits)
        late = LateAnswers(self._queue, source, self._answers, self._cache.streams)
        runs = {"learner": self._learner.run, "late answers": late.run}
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in runs.items()]
        self._closing = threading.Lock()
        self._ready = True
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ facts

    @property
    def method(self) -> str:
        """The name of the adapting method."""
        return self._adapter.name

    @property
    def ready(self) -> bool:
        """Whether requests are taken and learned from."""
        return self._ready and all(thread.is_alive() for thread in self._threads)

    # ------------------------------------------------------------------ requests

    def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Future[Prediction]:
        """Queue a batch of inputs (N, …); the future has the answer, with what was asked, or the error.

        InputError, BusyError, TooManyStreamsError and ClosedError are raised at once.
        """
        name = check_name(stream)
        check_asked(asked, rehearsed=self._adapter.rehearsal is not None)
        checked = checked_inputs(inputs, self._limits.rows, indices=self._indices)
        known = self._cache.streams.get(name)
        if known is None and len(self._cache.streams) >= self._limits.streams:
            raise TooManyStreamsError(f"there are {self._limits.streams} streams, and no more are taken")
        if known is not None and known.live is not None and known.shape:  # else not read with its checksum
            check_sample(checked, known.shape, name)
        request = Request(name, checked, time.monotonic() + self._limits.latency_ms / 1000, asked)
        self._queue.put(request)
        return request.future

    def label(self, stream: str, request: str, labels: Sequence[int]) -> LabelsTaken:
        """Take the labels of a request; on disk when it returns.

        The same labels may be sent again and count once; others for the same request are refused.
        """
        return self._with(stream, lambda own, _: self._label(own, request, labels))

    def _label(self, stream: ServedStream, request: str, labels: Sequence[int]) -> LabelsTaken:
        answered, before = self._answers.find(request)
        if answered.stream != stream.name:
            raise UnknownRequestError(f"the request {request} is not one of the stream {stream.name!r}")
        rows, classes = answered.given.shape
        checked = check_labels(labels, rows, classes)
        if before is None:
            entry = LabelEntry(stream.labels + 1, request, checked, answered)
            try:
                stream.folder.make()
                stream.journal.append(entry)
            except OSError as error:
                raise StorageError(f"the labels were not written, send them again: {error}") from error
            self._answers.mark(request, checked)
            self._cache.learn_labels(stream, entry)
        elif before != labels_hash(checked):
            raise InputError(f"other labels have come for the request {request} before")
        given = torch.where(answered.given.isfinite().all(1), answered.given.argmax(1), -1)
        return LabelsTaken(request, rows, int((given == torch.tensor(checked)).sum()))

    # ------------------------------------------------------------------ changes

    def reset(self, stream: str) -> None:
        """Go back to the source model."""

        def change(own: ServedStream, live: Live) -> None:
            (live.guard or self._adapter).reset()
            own.reset_after = own.batches
            own.source_temperature = self._adapter.source_temperature
            own.source_accuracy = self._adapter.source_accuracy
            live.source_window = own.source_expected = None
            self._changed(own)

        self._with(stream, change)

    def rollback(self, stream: str, steps: int = 1) -> str:
        """Go back by a number of snapshots; returns the name of the one gone back to."""

        def change(own: ServedStream, live: Live) -> str:
            kept, whole = len(live.snapshots), isinstance(steps, int) and not isinstance(steps, bool)
            if live.guard is None or not (whole and 1 <= steps <= kept):
                raise UnknownSnapshotError(f"expected to go back by 1 to {kept} snapshots, got {steps!r}")
            try:
                name = live.guard.rollback(steps)
            except StateError as error:
                raise UnknownSnapshotError(f"no snapshot can be read: {error}") from error
            self._changed(own)
            return name

        return self._with(stream, change)

    def release(self, stream: str) -> None:
        """Let a stream that its guard holds learn again; the mode of the stream stays."""

        def change(own: ServedStream, live: Live) -> None:
            if live.guard and live.guard.holding:
                live.guard.release()
                self._changed(own)

        self._with(stream, change)

    def snapshot(self, stream: str) -> str:
        """Write a snapshot now; returns its name, on disk when it returns."""

        def change(own: ServedStream, live: Live) -> str:
            if live.guard is None:
                raise UnknownSnapshotError(
                    "expected a guarded service, got one without a guard: it takes no snapshots"
                )
            name = live.guard.snapshot()
            own.unsaved += 1
            if not (own.folder.snapshots / f"{name}.safetensors").exists():
                raise StorageError(
                    f"the snapshot {name} was not written: a rollback can go to it until the process ends"
                )
            self._cache.save(own)
            return name

        return self._with(stream, change)

    def set_mode(self, stream: str, mode: Mode) -> None:
        """Change the mode of a stream."""
        if mode not in _MODES:
            raise InputError(f"expected a mode of {', '.join(_MODES)}, got {mode!r}")

        def change(own: ServedStream, _: Live) -> None:
            if own.mode != mode:
                own.event("mode", "request", f"from {own.mode} to {mode}")
                own.mode = mode
                self._changed(own)

        self._with(stream, change)

    def _changed(self, stream: ServedStream) -> None:
        """Write a change that a person asked for; it stands in memory even if that fails."""
        stream.unsaved += 1
        self._cache.try_save(stream)

    # ------------------------------------------------------------------ reading

    def streams(self) -> list[StreamStatus]:
        """All streams, by name; those on disk as they were when they left memory."""
        self._check_open()
        return [stream.status() for _, stream in sorted(self._cache.streams.copy().items())]

    def status(self, stream: str) -> StreamStatus:
        """One stream; it is read if it is on disk, and stays there."""
        own = self._known(stream)
        if own.live is not None:
            return own.status()
        return replace(self._look(own, lambda own, _: own.status()), resident=False)

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        """Rows of the stream's curves with `index` > since, oldest first, bounded in number."""
        own = self._known(stream)
        live = own.live
        if live is not None:
            return live.monitor.rows(since)
        return self._look(own, lambda _, live: live.monitor.rows(since))

    def _look(self, stream: ServedStream, call: Callable[[ServedStream, Live], _Result]) -> _Result:
        return self._do(lambda: self._cache.look(stream, call))

    def _check_open(self) -> None:
        if not self.ready:
            raise ClosedError(
                "the service is stopping, or has stopped by an error, and takes no more requests"
            )

    def _known(self, name: str) -> ServedStream:
        self._check_open()
        stream = self._cache.streams.get(check_name(name))
        if stream is None:
            raise UnknownStreamError(f"there is no stream {name!r}: it is made by its first request")
        return stream

    def _with(self, name: str, call: Callable[[ServedStream, Live], _Result]) -> _Result:
        """Call a function in the thread of the learner, with a stream whose state is in the adapter."""
        stream = self._known(name)
        return self._do(lambda: call(stream, self._cache.bring(stream)))

    def _do(self, call: Callable[[], _Result]) -> _Result:
        result: _Result = self._queue.run(call).result()
        return result

    # ------------------------------------------------------------------ end

    def close(self) -> None:
        """Take no more requests, answer those that came, save every stream.

        StorageError, at the end, if some could not be written.
        """
        with self._closing:
            if not self._ready:
                return
            self._ready = False
            self._queue.close()
            for thread in self._threads:
                thread.join()
                self._queue.wake()
            try:
                self._cache.save_all()
            finally:
                self._answers.close()
                self._folder.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class ServiceFromFactory:
    """Makes a service in whatever process calls it: only names and paths go from one to another.

    Attributes:
        factory: "module:function"; the function returns the model, or the model and a transform of images.
        source: the file of the model's source statistics (`SourceStatistics.save`); None for methods that do
            without. If it holds a rehearsal of the method, answers are tempered by it, and their accuracy is
            estimated.
        method: the name of the adapting method.
        limits: of the service.
    """

    factory: str
    source: Path | None
    method: str
    limits: Limits

    def __call__(self, state_folder: Path) -> Service:
        """The service, on a GPU where there is one."""
        return self.around(load_factory(self.factory)[0], state_folder)

    def around(self, model: nn.Module, state_folder: Path) -> Service:
        """The service around a model that the factory has made already."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        statistics = None if self.source is None else SourceStatistics.load(self.source)
        rehearsed = statistics is not None and self.method in statistics.rehearsals
        tempering = {"tempering": "rehearsed"} if rehearsed else {}
        adapter = create(self.method, model.to(device).eval(), statistics, **tempering)
        return Service(adapter, state_folder, limits=self.limits)
