"""`equipoise serve --engine ray` from the outside: HTTP requests, a killed replica, Ctrl-C, a restart."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from equipoise.production.server.ray.folders import owner
from tests.support.waiting import HANG

from .support import batch, rehearsed

GATE, YARD = "camera-5", "camera-0"
# The model is trained in every process: with one thread, as in the tests, its weights are equal to the bit.
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
MODEL = "from tests.support.rehearsals import trained\n\n\ndef load():\n    return trained()\n"


@contextmanager
def serving(folder: Path, replicas: int) -> Iterator[str]:
    """The URL of a server in a process of its own, which Ctrl-C ends."""
    words = "serve mymodel:load --source source.safetensors --state state --port 0 --engine ray"
    command = [sys.executable, "-m", "equipoise", *words.split(), "--replicas", str(replicas)]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **ENVIRONMENT},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first.startswith("Serving mymodel:load with poise at http://"), (
                folder / "errors"
            ).read_text()
            yield first.split(" at ")[1].split()[0]
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it as well
            rest = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, (folder / "errors").read_text()
    assert "every stream is saved in state" in rest


def predict(url: str, stream: str, seed: int) -> httpx.Response:
    packed = io.BytesIO()
    np.save(packed, batch(seed))
    kind = {"Content-Type": "application/x-npy"}
    path = f"{url}/v1/predict?stream={stream}"
    return httpx.post(path, content=packed.getvalue(), headers=kind, timeout=HANG)


def batches(url: str) -> dict[str, int]:
    listed = httpx.get(f"{url}/v1/streams", timeout=HANG).json()
    return {stream["name"]: stream["batches"] for stream in listed}


def replica_processes(folder: Path) -> list[int]:
    """The processes that hold the lock of a replica of this folder."""
    held = {path.stat().st_ino for path in (folder / "state").glob("replica-*/lock")}
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return [int(line[4]) for line in lines if int(line[5].split(":")[2]) in held]


@pytest.mark.slow  # Ray takes a minute to start and stop
def test_streams_behind_http_on_ray_survive_a_kill_ctrl_c_and_another_number_of_replicas(
    tmp_path: Path,
) -> None:
    assert (owner(GATE, 2), owner(YARD, 2)) == (0, 1)
    (tmp_path / "mymodel.py").write_text(MODEL)
    rehearsed().save(tmp_path / "source.safetensors")
    with serving(tmp_path, 2) as url:
        for seed in range(3):
            answers = [predict(url, name, seed) for name in (GATE, YARD)]
        assert answers[0].json()["probabilities"] == answers[1].json()["probabilities"]
        assert batches(url) == {GATE: 3, YARD: 3}
    with serving(tmp_path, 1) as url:
        assert batches(url) == {GATE: 3, YARD: 3}
        (process,) = replica_processes(tmp_path)
        os.kill(process, signal.SIGKILL)
        start = time.monotonic()
        answer = predict(url, GATE, 3)
        if answer.status_code == 503:  # it was sent before the death was noticed
            answer = predict(url, GATE, 3)
        assert answer.status_code == 200
        print(f"answered again {time.monotonic() - start:.1f} s after the kill")
        assert batches(url) == {GATE: 4, YARD: 3}
