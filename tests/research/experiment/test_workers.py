"""Workers: every task comes back once, whatever it does to its worker."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from equipoise.research.experiment.workers import ATTEMPTS, InProcess, LostWorkerError, ProcessPool, Workers
from tests.support.waiting import HANG, runs, wait_until


def work(folder: Path, task: str) -> str:
    """Do what the name of the task says."""
    if task == "raise":
        raise ValueError("as asked")
    if task == "threads":
        return str(torch.get_num_threads())
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "die once":
        mark = folder / "died"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if task == "pid":
        return str(os.getpid())
    return task.upper()


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPool]:
    workers = ProcessPool(2)
    yield workers
    workers.close()


def collect(workers: Workers, folder: Path, tasks: list[str]) -> dict[str, object]:
    pairs = list(workers.run(partial(work, folder), tasks))
    assert sorted(task for task, _ in pairs) == sorted(tasks)  # each once
    return dict(pairs)


def test_here_errors_come_back_in_place_of_results(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    results = collect(InProcess(), tmp_path, ["a", "raise", "b", "threads"])
    assert (results["a"], results["b"], results["threads"]) == ("A", "B", "1")
    assert isinstance(results["raise"], ValueError)
    assert torch.get_num_threads() == before


def test_processes_errors_and_threads(processes: ProcessPool, tmp_path: Path) -> None:
    results = collect(processes, tmp_path, ["a", "raise", "b", "threads", "pid"])
    assert (results["a"], results["b"], results["threads"]) == ("A", "B", "1")
    assert isinstance(results["raise"], ValueError)
    assert results["pid"] != str(os.getpid())


def test_a_worker_that_dies_takes_nothing_along(processes: ProcessPool, tmp_path: Path) -> None:
    results = collect(processes, tmp_path, ["die once", *"abcdef"])
    assert results == {"die once": "DIE ONCE", **{letter: letter.upper() for letter in "abcdef"}}


def test_a_task_that_always_kills_its_worker_is_given_up(processes: ProcessPool, tmp_path: Path) -> None:
    results = collect(processes, tmp_path, ["a", "die", "b", "c"])
    assert isinstance(results["die"], LostWorkerError)
    assert str(ATTEMPTS) in str(results["die"])
    assert (results["a"], results["b"], results["c"]) == ("A", "B", "C")


def _parent(pids: str) -> None:
    workers = ProcessPool(1)
    (_, pid), *_ = workers.run(partial(work, Path()), ["pid"])
    Path(pids).write_text(str(pid))
    time.sleep(HANG)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = multiprocessing.get_context("spawn").Process(target=_parent, args=(str(file),))
    parent.start()
    wait_until(lambda: file.exists() and file.read_text(), "the number of the worker")
    worker = int(file.read_text())
    os.kill(worker, 0)  # it lives
    parent.kill()
    parent.join()
    wait_until(lambda: not runs(worker), "the worker ends with its parent")


def test_workers_that_die_while_nobody_looks_are_replaced(tmp_path: Path) -> None:
    workers = ProcessPool(1)
    try:
        collect(workers, tmp_path, ["a", "b"])
        for worker in list(workers._pool._processes.values()):
            worker.kill()
            worker.join()
        time.sleep(0.5)  # the pool notices
        assert collect(workers, tmp_path, ["c", "d", "e"]) == {"c": "C", "d": "D", "e": "E"}
    finally:
        workers.close()


def die_and_count(folder: Path, task: str) -> str:
    """The task that is called so leaves a mark each time before it kills its worker."""
    if task == "die":
        with (folder / "tries").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_tasks_are_taken_in_order_and_a_deadly_one_is_tried_three_times(tmp_path: Path) -> None:
    workers = ProcessPool(1)
    try:
        pairs = list(workers.run(partial(die_and_count, tmp_path), ["b", "a", "die", "c"]))
    finally:
        workers.close()
    assert [task for task, _ in pairs] == ["b", "a", "die", "c"]
    assert isinstance(dict(pairs)["die"], LostWorkerError)
    assert (tmp_path / "tries").read_text() == "x" * ATTEMPTS
