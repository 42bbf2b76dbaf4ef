"""The process behind one replica on Ray Serve: a service, and the lock that makes it the only one."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise.production.server.errors import ClosedError
from equipoise.production.server.folder_lock import FolderLock
from equipoise.production.server.interface import Prediction, ServiceLike

ServiceRecipe = Callable[[Path], ServiceLike]
"""Makes the service of a replica, in the replica's process, with the folder for its state."""

ServiceCall = Literal[
    "label", "reset", "release", "rollback", "snapshot", "set_mode", "streams", "status", "history"
]
"""A call of a service that returns when it is done."""


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
