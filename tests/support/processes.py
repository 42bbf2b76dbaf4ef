"""Runs a function in several processes that torch.distributed makes one group of."""

import io
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.waiting import HANG


def in_processes(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    dying: Collection[int] = (),
) -> list[Any]:
    """Results of `function(*args)` in each of `size` processes of a gloo group, in order of rank.

    The function is one of a module's own, its arguments and results are tensors, numbers, strings, None, and
    lists, tuples and dicts of those. An error in a process is an AssertionError here, with its traceback.

    Args:
        size: how many processes.
        function: to run in each of them.
        args: its arguments, the same for all.
        dying: the ranks that may end without a result; theirs is None.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "equipoise.adapter"])  # seconds, which are thus spent only once
    end = time.monotonic() + HANG
    with tempfile.TemporaryDirectory() as folder:
        meeting, passed = str(Path(folder, "meeting")), _packed(args)
        pipes = [context.Pipe() for _ in range(size)]
        processes = [
            context.Process(target=_run, args=(rank, size, meeting, pipe[1], function, passed))
            for rank, pipe in enumerate(pipes)
        ]
        try:
            for process, (_, theirs) in zip(processes, pipes, strict=True):
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
            results = [_received(rank, pipe[0], end, rank in dying) for rank, pipe in enumerate(pipes)]
            for rank, (process, (ours, _)) in enumerate(zip(processes, pipes, strict=True)):
                with suppress(BrokenPipeError):  # it is dead
                    ours.send_bytes(b"all have answered")
                process.join(max(end - time.monotonic(), 0))
                assert not process.is_alive(), f"rank {rank} cannot leave"
            return results
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()


def _run(
    rank: int,
    size: int,
    meeting: str,
    parent: Connection,
    function: Callable[..., Any],
    passed: bytes,
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=HANG),
        )
        told = _packed((True, function(*_unpacked(passed))))
    except Exception:
        told = _packed((False, traceback.format_exc()))
    parent.send_bytes(told)
    parent.recv_bytes()  # whoever leaves closes its connections, which the others may still need
    dist.destroy_process_group()


def _received(rank: int, pipe: Connection, end: float, may_die: bool) -> Any:
    if not pipe.poll(max(end - time.monotonic(), 0)):
        raise AssertionError(f"rank {rank} has not answered in time: it hangs")
    try:
        well, told = _unpacked(pipe.recv_bytes())
    except EOFError:
        if may_die:
            return None
        raise AssertionError(f"rank {rank} ended without a result") from None
    if not well:
        raise AssertionError(f"rank {rank} raised\n{told}")
    return told


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
