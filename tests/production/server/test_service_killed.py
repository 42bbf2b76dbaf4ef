"""A service that is killed: nothing that it has acknowledged is lost."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from equipoise.production.server.answers import Journal
from tests.production.server.killed import ROWS
from tests.production.server.support import adapter, ask, batch, labels, service

ROOT = Path(__file__).parents[3]

KEPT = 8
"""The snapshots that a guard keeps."""


def serve_and_kill(folder: Path, first: int, lines: int, after: float) -> list[list[str]]:
    """Run a service from one seed on, kill it some seconds after a number of lines; returns the lines."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.production.server.killed", str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # the model is trained in both processes: with as many threads, its weights are the same to the bit
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    with process:
        assert process.stdout is not None
        read = [process.stdout.readline() for _ in range(lines)]
        time.sleep(after)
        process.kill()
        read += process.stdout.readlines()
    return [line.split() for line in read if line.endswith("\n")]


def check_nothing_is_lost(folder: Path, came: list[list[str]], before: int, first: int) -> tuple[int, int]:
    """Open the folder of a killed service.

    Args:
        folder: of the service.
        came: all that was acknowledged so far.
        before: the batches of the stream when the killed process began.
        first: the first seed that it was asked.

    Returns:
        The batches of the stream now, and the first seed that has not been asked.
    """
    answers = {int(seed): request for kind, seed, request in came if kind == "answer"}
    labelled = {int(seed): request for kind, seed, request in came if kind == "label"}
    snapshots = [name for kind, _, name in came if kind == "snapshot"]
    with service(folder, adapter=adapter("norm"), save_every=3) as own:
        status = own.status("a")
        fresh = [seed for seed in answers if seed >= first]
        assert status.batches >= before + len(fresh) - 3  # at most the batches since the last save
        newest = max((int(name.split("-")[0]) for name in status.snapshots), default=0)
        kept = {name for name in snapshots if int(name.split("-")[0]) > newest - KEPT}
        assert kept <= set(status.snapshots)
        (journal,) = folder.glob("streams/*/labels.jsonl")
        written = {entry.request: entry.labels for entry in Journal(journal).entries()}
        assert len(written) - len(labelled) in (0, 1)  # one may be written and not acknowledged yet
        assert all(written[request] == labels(seed, ROWS) for seed, request in labelled.items())
        assert status.gauges["labels"] == ROWS * len(written)
        for seed, request in labelled.items():
            assert own.label("a", request, labels(seed, ROWS)).rows == ROWS
        assert own.status("a").gauges["labels"] == ROWS * len(written)  # each counts once
        seeds = {request: str(seed) for seed, request in answers.items()}
        came += [["label", seeds[request], request] for request in set(written) - set(labelled.values())]
        # an answer that is in the saved state: the monitor has not seen those of batches that were lost
        saved = [seed for seed in fresh[:-3] if seed not in labelled]
        for seed in saved[-1:]:
            assert own.label("a", answers[seed], labels(seed, ROWS)).rows == ROWS
            came.append(["label", str(seed), answers[seed]])
        seed = max(answers) + 1
        came.append(["answer", str(seed), ask(own, "a", batch(seed, ROWS)).request])
        return own.status("a").batches, seed + 1


def kill_repeatedly(folder: Path, times: int) -> None:
    draw, came, batches, seed = random.Random(0), [], 0, 0  # noqa: S311
    for _ in range(times):
        came += serve_and_kill(folder, seed, lines=draw.randint(5, 12), after=draw.random() / 20)
        batches, seed = check_nothing_is_lost(folder, came, batches, seed)


def test_a_killed_service_loses_nothing_acknowledged(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, 1)


@pytest.mark.slow
def test_a_service_killed_20_times_loses_nothing_acknowledged(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, 20)
