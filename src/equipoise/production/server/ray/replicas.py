"""Processes on Ray Serve: one deployment each, with a service and the lock that makes it the only one."""

import asyncio
import logging
import math
import os
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise.errors import EquipoiseError, OptionError
from equipoise.production.server.errors import BusyError, ClosedError, ReplicaLostError
from equipoise.production.server.interface import Prediction, ServiceLike
from equipoise.production.server.ray.folders import replica_folder, spread_streams
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
    """A service in a process of its own; Ray Serve makes it, and makes it anew when the process dies.

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

    async def submit(self, stream: str, inputs: np.ndarray[Any, Any]) -> Prediction:
        """The answer to a batch; a caller that gives up does not cancel a batch that is queued."""
        future = self._open_service.submit(stream, inputs)
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
