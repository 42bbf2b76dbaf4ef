"""Workers for tasks: this process, several or a Ray cluster; a failed task or dead worker stops no other."""

import gc
import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import torch

from equipoise.errors import OptionError
from equipoise.research.data.corruption_pool import prepare_process
from equipoise.research.experiment.repeatable import allow_repeatable_cuda

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

ATTEMPTS = 3
"""Attempts at a task whose worker dies: the task itself may be the cause."""


class LostWorkerError(RuntimeError):
    """The worker of a task died at every attempt."""


class Workers(Protocol):
    """Workers that run tasks, `count` at a time, and yield each result with its task when it is ready."""

    count: int

    def run(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, _Result | Exception]]:
        """Call the function with every task; an exception takes the place of the result."""

    def close(self) -> None:
        """Stop the tasks that are still running."""


class InProcess:
    """One task after the other in this process."""

    count = 1

    def run(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, _Result | Exception]]:
        """See `Workers`."""
        for task in tasks:
            with one_thread():
                result = _attempt(function, task)
            yield task, result

    def close(self) -> None:
        """See `Workers`."""


class ProcessPool:
    """Several processes of this machine, started once and kept."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = self._new_pool()
        self._busy = False

    def run(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, _Result | Exception]]:
        """See `Workers`."""
        waiting = [(task, 1) for task in reversed(tasks)]
        running: dict[Future[_Result], tuple[_Task, int]] = {}
        self._busy = True
        while waiting or running:
            # No more tasks than workers, so that a worker that dies costs only the running tasks. Those are
            # tried again one at a time, so that the task that kills its worker costs no other.
            suspects = [task for task, attempt in (*waiting, *running.values()) if attempt > 1]
            broken = False
            while waiting and len(running) < (1 if suspects else self.count) and not broken:
                task, attempt = waiting.pop()
                try:
                    running[self._pool.submit(function, task)] = (task, attempt)
                except BrokenProcessPool:  # a worker died between two tasks
                    waiting.append((task, attempt))
                    broken = True
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            broken |= any(isinstance(future.exception(), BrokenProcessPool) for future in finished)
            if broken:
                finished, _ = wait(running)
            for future in finished:
                task, attempt = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    if attempt < ATTEMPTS:
                        waiting.append((task, attempt + 1))
                    else:
                        yield task, LostWorkerError(f"its worker died {ATTEMPTS} times; out of memory?")
                elif isinstance(error, Exception):
                    yield task, error
                elif error is not None:
                    raise error
                else:
                    yield task, future.result()
            if broken:
                self._pool = self._new_pool()
        self._busy = False

    def close(self) -> None:
        """See `Workers`."""
        if self._busy:  # a training may take hours, and its finished epochs are on disk
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        # Spawned: a forked child of a process that has used CUDA or threads is not safe.
        return ProcessPoolExecutor(
            self.count, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )


def _start_worker() -> None:
    prepare_process()
    allow_repeatable_cuda()


def _attempt(function: Callable[[_Task], _Result], task: _Task) -> _Result | Exception:
    try:
        return function(task)
    except Exception as error:
        return error


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread on the CPU, as in every worker: the same bits with any number of workers."""
    allow_repeatable_cuda()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_memory_kept() -> Iterator[None]:
    """Return the GPU memory of a task at its end: other workers, or other programs, may need it."""
    try:
        yield
    finally:
        if torch.cuda.is_initialized():
            gc.collect()  # adapters with hooks are in reference cycles
            torch.cuda.empty_cache()


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
