"""Services on a real local Ray: answers are those of one process, and a killed replica loses little."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from equipoise.production.server.errors import InputError, ReplicaLostError
from equipoise.production.server.interface import Prediction, ServiceLike
from equipoise.production.server.limits import Limits
from equipoise.production.server.ray.folders import owner
from equipoise.production.server.ray.service import RayService
from equipoise.production.server.service import ServiceFromFactory
from tests.support.waiting import HANG

from .support import PATIENT, batch, labels, rehearsed, same, service

SAVE_EVERY = 4


def name_owned_by(before: int, after: int, kind: str) -> str:
    """The name of a stream that is owned by one of two replicas, and then by one of three."""
    names = (f"{kind}-{number}" for number in count())
    return next(name for name in names if (owner(name, 2), owner(name, 3)) == (before, after))


def start(folder: Path, replicas: int) -> RayService:
    limits = Limits(latency_ms=PATIENT, save_every=SAVE_EVERY)
    source = folder.parent / "source.safetensors"
    rehearsed().save(source)
    recipe = ServiceFromFactory("tests.support.rehearsals:trained", source, "poise", limits)
    return RayService(recipe, folder, replicas=replicas)


def ask(service: ServiceLike, stream: str, seed: int) -> Prediction:
    return service.submit(stream, batch(seed)).result(HANG)


def alone(folder: Path, stream: str, batches: int) -> Prediction:
    """The answer to the batch after so many others, of a service in this process."""
    with service(folder) as local:
        for seed in range(batches):
            ask(local, stream, seed)
        return ask(local, stream, batches)


@pytest.mark.slow  # Ray takes a minute to start and stop
def test_a_killed_replica_loses_the_batches_since_its_last_save_and_no_more(tmp_path: Path) -> None:
    kept = name_owned_by(0, 0, "snapshot-before-the-kill")
    plain = name_owned_by(0, 2, "no-snapshot")
    crowded = name_owned_by(0, 0, "requests-in-flight")
    other = name_owned_by(1, 2, "another-replica")
    with start(tmp_path / "state", 2) as ray:
        for seed in range(10):
            answers = {name: ask(ray, name, seed) for name in (kept, plain, other)}
        assert same(answers[kept], answers[other])
        assert ray.snapshot(kept) in ray.status(kept).snapshots
        taken = ray.label(plain, answers[plain].request, labels(9))
        ask(ray, kept, 10)

        before = ray.replicas()
        waiting = [ray.submit(crowded, batch(seed)) for seed in range(200)]  # more than are answered at once
        os.kill(before[0].process, signal.SIGKILL)
        killed = time.monotonic()
        lost = [request for request in waiting if request.exception(HANG) is not None]
        assert lost
        assert all(isinstance(request.exception(), ReplicaLostError) for request in lost)

        batches = ray.status(kept).batches, ray.status(plain).batches
        print(f"{len(lost)} of 20 requests lost; state after {time.monotonic() - killed:.1f} s: {batches}")
        assert batches[0] == 10
        assert 10 - SAVE_EVERY < batches[1] <= 10
        assert same(ask(ray, kept, 10), alone(tmp_path / "kept", kept, 10))
        assert ray.label(plain, answers[plain].request, labels(9)) == taken
        with pytest.raises(InputError, match="other labels have come"):
            ray.label(plain, answers[plain].request, [3 - label for label in labels(9)])

        after = ray.replicas()
        assert after[0].process != before[0].process
        assert after[1] == before[1]
        assert ray.status(other).batches == 10
        saved = {status.name: status.batches for status in ray.streams()}

    with start(tmp_path / "state", 3) as ray:
        assert {status.name: status.batches for status in ray.streams()} == saved
        assert same(ask(ray, other, 10), alone(tmp_path / "other", other, 10))
        assert (tmp_path / "state" / "replica-2" / "streams").exists()


@pytest.mark.slow  # likewise
def test_the_example_runs() -> None:
    example = Path(__file__).parents[3] / "examples" / "ray_serve.py"
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, timeout=HANG, check=True
    ).stdout
    lines = re.findall(r"^(gate|roof): (\d+) batches", done, re.MULTILINE)
    assert lines == [("gate", "12"), ("roof", "12"), ("gate", "11"), ("roof", "12")], done
