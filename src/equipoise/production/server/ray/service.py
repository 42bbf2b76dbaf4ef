"""A service over replicas on Ray Serve: a stream is owned by one replica, its state is in a shared folder."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from equipoise.errors import OptionError
from equipoise.production.server.errors import ClosedError, ReplicaLostError
from equipoise.production.server.interface import LabelsTaken, Mode, Prediction, StreamStatus
from equipoise.production.server.ray.folders import owner
from equipoise.production.server.ray.replicas import (
    RayReplicas,
    ReplicaFacts,
    ServiceCall,
    ServiceRecipe,
    as_service_error,
)
from equipoise.production.server.store import FolderLock

_Result = TypeVar("_Result")


class RayService:
    """A `ServiceLike` whose streams are spread over replicas, each a process with a service of its own.

    A stream goes to the replica that the rendezvous hash of its name picks (`folders.owner`), and to no
    other. Each replica is a Ray Serve deployment of one process: Serve checks its health and makes it anew
    when it dies. `@serve.multiplexed` is not used, although it sends a model id to a replica that has it
    already: it gives affinity, not ownership, and under load two replicas may hold one id. Of a model that is
    only read that is harmless; two replicas that learn from one stream would fork its state.

    The state folder has a folder for each replica, locked by its process, and must be under the same path on
    every node. A start with another number of replicas first moves the streams to their new owners
    (`folders.spread_streams`). When a process dies, requests that it was answering get `ReplicaLostError`;
    requests that come later wait for its successor, which goes on from the states on disk. Batches since a
    stream was last saved are lost.

    Nothing that Python can execute is read from disk. Between the processes of its cluster Ray itself pickles
    calls and answers: keep the ports of the cluster from the network.

    Args:
        recipe: makes the service of a replica, in its process: the weights are made there and not sent.
        folder: the state folder; one service at a time can use it.
        replicas: the number of processes.
        address: of an existing Ray cluster; None for one on this machine, which ends with this service.
        timeout: seconds that an answer may take, a restart of its replica included.
    """

    def __init__(
        self,
        recipe: ServiceRecipe,
        folder: Path,
        *,
        replicas: int = 2,
        address: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        if replicas < 1:
            raise OptionError(f"replicas: expected at least 1, got {replicas}")
        self._timeout, self._closed, self._closing = timeout, False, threading.Lock()
        self._lock = FolderLock(folder / "lock")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="equipoise-ray", daemon=True)
        self._thread.start()
        try:
            self._replicas = RayReplicas(recipe, folder, replicas, address)
            try:
                self._facts = self.replicas()[0]
            except BaseException:
                self._replicas.stop()
                raise
        except BaseException:
            self._end()
            raise

    # ------------------------------------------------------------------ facts

    @property
    def method(self) -> str:
        """The name of the adapting method."""
        return self._facts.method

    @property
    def ready(self) -> bool:
        """Whether requests are taken; also while a replica is made anew, as requests wait for it."""
        return not self._closed

    def replicas(self) -> list[ReplicaFacts]:
        """The replicas, with the processes that they run in just now."""
        return self._wait(self._all("facts"))

    # ------------------------------------------------------------------ requests

    def submit(self, stream: str, inputs: np.ndarray[Any, Any]) -> Future[Prediction]:
        """Queue a batch of inputs (N, …) at the replica that owns the stream."""
        return self._begin(self._answer(self.owner(stream), "submit", stream, inputs))

    def label(self, stream: str, request: str, labels: Sequence[int]) -> LabelsTaken:
        """Take the labels of a request; on disk when it returns."""
        taken: LabelsTaken = self._change(stream, "label", request, list(labels))
        return taken

    def reset(self, stream: str) -> None:
        """Go back to the source model."""
        self._change(stream, "reset")

    def release(self, stream: str) -> None:
        """Let a stream that its guard holds learn again; the mode of the stream stays."""
        self._change(stream, "release")

    def rollback(self, stream: str, steps: int = 1) -> str:
        """Go back by a number of snapshots; returns the name of the one gone back to."""
        return str(self._change(stream, "rollback", steps))

    def snapshot(self, stream: str) -> str:
        """Write a snapshot now; returns its name, on disk when it returns."""
        return str(self._change(stream, "snapshot"))

    def set_mode(self, stream: str, mode: Mode) -> None:
        """Change the mode of a stream."""
        self._change(stream, "set_mode", mode)

    def streams(self) -> list[StreamStatus]:
        """All streams, by name, each as its owner has it."""
        listed: list[list[StreamStatus]] = self._wait(self._all("call", "streams"))
        owned = [s for index, part in enumerate(listed) for s in part if self.owner(s.name) == index]
        return sorted(owned, key=lambda status: status.name)

    def status(self, stream: str) -> StreamStatus:
        """One stream."""
        status: StreamStatus = self._read(stream, "status")
        return status

    def history(self, stream: str, since: int = 0) -> list[dict[str, Any]]:
        """Rows of the stream's curves with `index` > since."""
        rows: list[dict[str, Any]] = self._read(stream, "history", since)
        return rows

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Take no more requests, answer those that came, save every stream, stop the replicas."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._save_all(), self._loop).result()
        finally:
            self._replicas.stop()
            self._end()

    def __enter__(self) -> "RayService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _save_all(self) -> None:
        """Save every replica's streams; an error of one is raised after the others have saved theirs."""
        came = asyncio.all_tasks() - {asyncio.current_task()}
        closing = [self._answer(index, "close") for index in range(len(self._replicas))]
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        if came:
            await asyncio.wait(came, timeout=self._timeout)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._lock.release()

    # ------------------------------------------------------------------ calls

    def owner(self, stream: str) -> int:
        """The index of the replica that owns a stream."""
        return owner(stream, len(self._replicas))

    def _change(self, stream: str, action: ServiceCall, *args: Any) -> Any:
        return self._wait(self._answer(self.owner(stream), "call", action, stream, *args))

    def _read(self, stream: str, action: ServiceCall, *args: Any) -> Any:
        return self._wait(self._asked_again(self.owner(stream), "call", action, stream, *args))

    async def _all(self, name: str, *args: Any) -> list[Any]:
        """The answers of all replicas to a question that changes nothing."""
        asked = [self._asked_again(index, name, *args) for index in range(len(self._replicas))]
        return await asyncio.gather(*asked)

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self._begin(work).result()

    def _begin(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start work in the thread that asks the replicas."""
        with self._closing:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ClosedError("the service is stopping and takes no more requests")

    async def _asked_again(self, index: int, name: str, *args: Any) -> Any:
        """An answer to a question that changes nothing: asked a second time if the replica dies over it."""
        try:
            return await self._answer(index, name, *args)
        except ReplicaLostError:
            return await self._answer(index, name, *args)

    async def _answer(self, index: int, name: str, *args: Any) -> Any:
        """The result of a method of a replica; its errors are those of a service."""
        try:
            return await asyncio.wait_for(self._replicas.call(index, name, *args), self._timeout)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise ReplicaLostError(
                f"replica {index} has not answered within {self._timeout:g} s: it is being replaced, or has "
                "more work than it can do; the batch may or may not have been learned from"
            ) from error
        except Exception as error:
            raise as_service_error(error, index) from error
