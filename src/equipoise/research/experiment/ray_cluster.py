"""Workers on a Ray cluster: a local one that is started here, or an existing one."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from equipoise.errors import OptionError
from equipoise.research.experiment.workers import ATTEMPTS, LostWorkerError, one_thread

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class RayCluster:
    """Ray tasks, `count` at a time; GPUs are shared in equal parts between the tasks that run at once.

    The data and output folders must be under the same paths on every node. Ray starts a task again when its
    worker dies.
    """

    def __init__(self, count: int, address: str | None) -> None:
        self._ray = ray = _import_ray(address)
        self.count = count
        self._ours = not ray.is_initialized()
        if self._ours:
            local = {} if address else {"num_cpus": count, "include_dashboard": False}
            try:
                ray.init(
                    address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local
                )
            except ConnectionError as error:
                raise OptionError(f"--address {address}: no Ray cluster answers: {error}") from error
        gpus = ray.cluster_resources().get("GPU", 0)
        self._options = {
            "num_cpus": 1,
            "num_gpus": 1 / math.ceil(count / gpus) if gpus else 0,
            "max_retries": ATTEMPTS - 1,
        }

    def run(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, _Result | Exception]]:
        """See `Workers`."""
        remote = self._ray.remote(**self._options)(_alone)
        waiting = list(reversed(tasks))
        running: dict[Any, _Task] = {}
        while waiting or running:
            while waiting and len(running) < self.count:
                task = waiting.pop()
                running[remote.remote(function, task)] = task
            (ready, *_), _ = self._ray.wait(list(running))
            task = running.pop(ready)
            try:
                yield task, self._ray.get(ready)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, Exception) else error
                cause.__cause__ = RuntimeError(str(error))  # has the traceback of the worker
                yield task, cause
            except self._ray.exceptions.RayError as error:
                yield task, LostWorkerError(f"its worker died {ATTEMPTS} times: {error}")

    def close(self) -> None:
        """See `Workers`."""
        if self._ours:
            self._ray.shutdown()


def _import_ray(address: str | None) -> Any:
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise OptionError("--engine ray needs Ray: pip install 'equipoise[ray]'") from missing
    if (address or "").startswith("ray://") and find_spec("grpc") is None:
        raise OptionError(
            f"--address {address} needs Ray's client, which is not installed: pip install 'ray[client]'"
        )
    return ray


def _alone(function: Callable[[_Task], _Result], task: _Task) -> _Result:
    with one_thread():
        return function(task)
