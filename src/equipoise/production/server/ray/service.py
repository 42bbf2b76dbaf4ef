"""A service over replicas on Ray Serve: a stream is owned by one replica, its state is in a shared folder."""

import asyncio
import logging
import math
import os
import socket
import threading
import warnings
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from equipoise.errors import EquipoiseError, OptionError
from equipoise.production.server.errors import BusyError, ClosedError, ReplicaLostError
from equipoise.production.server.interface import (
    NOTHING_ASKED,
    Asked,
    LabelsTaken,
    Mode,
    Prediction,
    ServiceLike,
    StreamStatus,
)
from equipoise.production.server.ray.folders import owner, replica_folder, spread_streams
from equipoise.production.server.store import FolderLock

ServiceRecipe = Callable[[Path], ServiceLike]
"""Makes the service of a replica, in the replica's process, with the folder for its state."""

ServiceCall = Literal[
    "label", "reset", "release", "rollback", "snapshot", "set_mode", "streams", "status", "history"
]
"""A call of a service that returns when it is done."""

_AT_ONCE = 10_000
"""Requests that a replica takes at once: its service has a queue with a limit of its own."""

_WAITING = 256
"""Requests that wait for a replica that is being replaced; more are refused."""

_HANDOVER = 30.0
"""Seconds that a replica has to save its streams and end, and that its successor waits for it."""

_Result = TypeVar("_Result")


def import_ray() -> tuple[Any, Any]:
    """The modules `ray` and `ray.serve`; OptionError says what to install where there are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray Serve uses what pydantic deprecates
            import ray
            from ray import serve
    except ModuleNotFoundError as missing:
        raise OptionError("--engine ray needs Ray Serve: pip install 'equipoise[ray]'") from missing
    return ray, serve


def as_service_error(error: Exception, replica: int) -> Exception:
    """The error of a service that an error of a call to a replica stands for; unknown ones stay as they are.

    An error that the service itself raised in its process comes wrapped by Ray, and is unwrapped.
    """
    ray, serve = import_ray()
    lost = (
        ray.exceptions.RayActorError,
        serve.exceptions.DeploymentUnavailableError,
        serve.exceptions.ReplicaUnavailableError,
        serve.exceptions.RequestCancelledError,
    )
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, (EquipoiseError, *lost)):
        error = cause
    if isinstance(error, serve.exceptions.BackPressureError):
        return BusyError(f"too many requests wait for replica {replica}: try again later")
    if isinstance(error, lost):
        return ReplicaLostError(
            f"the process of replica {replica} has stopped and is being replaced; its streams go on from "
            "their last save: try again"
        )
    return error


@dataclass(frozen=True)
class ReplicaFacts:
    """A replica that answers.

    Attributes:
        index: of the replica, from 0.
        node: the name of its machine.
        process: the id of its process there.
        method: the name of the adapting method.
    """

    index: int
    node: str
    process: int
    method: str


class Replica:
    """A service in a process of its own; Ray Serve makes it, and makes it again when the process dies.

    A replica that Serve gave up on may still be saving its streams while its successor starts. The successor
    waits until the lock of their folder is free before it reads any state: two processes never own a stream.

    Args:
        recipe: makes the service, which locks its folder.
        index: of the replica.
        folder: its state folder, which no other replica uses.
        patience: seconds to wait for a predecessor to end.
    """

    _service: ServiceLike | None = None

    def __init__(self, recipe: ServiceRecipe, index: int, folder: Path, patience: float) -> None:
        self._index = index
        FolderLock(folder / "lock", wait=patience).release()
        self._service = recipe(folder)

    @property
    def _open_service(self) -> ServiceLike:
        if self._service is None:
            raise ClosedError(f"replica {self._index} has saved its streams and takes no more requests")
        return self._service

    async def facts(self) -> ReplicaFacts:
        """The process of the replica, and its method."""
        service = self._open_service
        return ReplicaFacts(self._index, socket.gethostname(), os.getpid(), service.method)

    async def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Prediction:
        """The answer to a batch; a caller that gives up does not cancel a batch that is queued."""
        future = self._open_service.submit(stream, inputs, asked)
        return await asyncio.shield(asyncio.wrap_future(future))

    async def call(self, action: ServiceCall, *args: Any) -> Any:
        """Call the service, in a thread: other requests go on meanwhile."""
        return await asyncio.to_thread(getattr(self._open_service, action), *args)

    def check_health(self) -> None:
        """Raise ClosedError, upon which Serve replaces the replica, if the service takes no more requests.

        A replica that was closed on purpose is healthy: nothing is to be replaced.
        """
        if self._service is not None and not self._service.ready:
            raise ClosedError(f"the service of replica {self._index} has stopped by itself")

    async def close(self) -> None:
        """Save every stream and take no more requests."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def __del__(self) -> None:
        """Close when Serve takes the replica down in good order, as before its node is taken away."""
        self._close()


class RayReplicas:
    """Replicas of a service: applications of Ray Serve with one process each, named after the state folder.

    An application of the same name that a killed driver left on a cluster is stopped first; its streams are
    saved as it ends.
    """

    def __init__(self, recipe: ServiceRecipe, folder: Path, replicas: int, address: str | None) -> None:
        self._ray, self._serve = import_ray()
        self._connects = not self._ray.is_initialized()
        self._starts = self._connects and address is None
        if self._connects:
            self._connect(replicas, address)
        self._serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        self._prefix = f"equipoise-{blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()}-"
        self._delete_applications()
        spread_streams(folder, replicas, wait=_HANDOVER)
        deployment = self._serve.deployment(
            num_replicas=1,
            max_ongoing_requests=_AT_ONCE,
            max_queued_requests=_WAITING,
            health_check_period_s=1.0,
            graceful_shutdown_timeout_s=_HANDOVER,
            graceful_shutdown_wait_loop_s=0.1,
            ray_actor_options={"num_cpus": 1, "num_gpus": self._share_of_gpus(replicas)},
        )(Replica)
        targets = [
            self._serve.RunTarget(
                deployment.bind(recipe, index, replica_folder(folder.resolve(), index), _HANDOVER),
                name=f"{self._prefix}{index}",
                route_prefix=None,
            )
            for index in range(replicas)
        ]
        try:
            self._handles = self._serve.run_many(targets)
        except RuntimeError as error:
            why = self._failure() or str(error)
            self.stop()
            raise OptionError(f"the replicas do not start: {why.splitlines()[-1]}") from RuntimeError(why)

    def __len__(self) -> int:
        return len(self._handles)

    async def call(self, index: int, name: str, *args: Any) -> Any:
        """The result of a method of a replica; waits for a replica that is being replaced."""
        return await getattr(self._handles[index], name).remote(*args)

    def stop(self) -> None:
        """End the processes, and Ray if it was started here; of a cluster, other applications stay."""
        self._delete_applications()
        if self._starts:
            self._serve.shutdown()
        if self._connects:
            self._ray.shutdown()

    def _connect(self, replicas: int, address: str | None) -> None:
        if (address or "").startswith("ray://"):
            raise OptionError(
                f'{address}: expected a process on a node of the cluster, with the address "auto"'
            )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        local = {} if address else {"num_cpus": replicas, "include_dashboard": False}
        try:
            self._ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local
            )
        except ConnectionError as error:
            raise OptionError(f"{address}: no Ray cluster answers: {error}") from error

    def _share_of_gpus(self, replicas: int) -> float:
        gpus = self._ray.cluster_resources().get("GPU", 0)
        return 1 / math.ceil(replicas / gpus) if gpus else 0

    def _failure(self) -> str:
        """The error, with its traceback, of the first replica that could not be made."""
        applications = self._serve.status().applications
        ours = (status for name, status in applications.items() if name.startswith(self._prefix))
        messages = (deployment.message for status in ours for deployment in status.deployments.values())
        return next((message.strip() for message in messages if message.strip()), "")

    def _delete_applications(self) -> None:
        for name in self._serve.status().applications:
            if name.startswith(self._prefix):
                self._serve.delete(name)


class RayService:
    """A `ServiceLike` whose streams are spread over replicas, each a process with a service of its own.

    A stream goes to the replica that the rendezvous hash of its name picks (`folders.owner`), and to no
    other. Each replica is a Ray Serve deployment of one process: Serve checks its health and makes it again
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
        """Whether requests are taken; also while a replica is made again, as requests wait for it."""
        return not self._closed

    def replicas(self) -> list[ReplicaFacts]:
        """The replicas, with the processes that they run in just now."""
        return self._wait(self._all("facts"))

    # ------------------------------------------------------------------ requests

    def submit(
        self, stream: str, inputs: np.ndarray[Any, Any], asked: Asked = NOTHING_ASKED
    ) -> Future[Prediction]:
        """Queue a batch of inputs (N, …) at the replica that owns the stream."""
        return self._begin(self._answer(self.owner(stream), "submit", stream, inputs, asked))

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
