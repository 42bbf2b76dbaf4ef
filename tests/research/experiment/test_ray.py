"""A real local Ray of two workers gives what this machine's processes give, also when a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.errors import OptionError
from equipoise.research.experiment.workers import RayCluster
from tests.support.waiting import HANG

from .own import CELLS, RECIPE, command, run, write_own
from .toy import scores


def test_an_address_of_ray_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(OptionError, match=r"ray://head:10001 needs .* pip install 'ray\[client\]'"):
        RayCluster(1, "ray://head:10001")


def task_workers() -> list[int]:
    """The processes of Ray that run a task of ours just now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(b"ray::_alone"):
                found.append(int(folder.name))
    return found


@pytest.mark.slow  # Ray takes a minute to start and stop
def test_ray_gives_the_same_and_survives_a_killed_worker(tmp_path: Path) -> None:
    slow = RECIPE.replace("mine: {batch_size: 20}", "mine: {batch_size: 10, options: {pause: 0.2}}")
    recipe = write_own(tmp_path, slow)
    line = f"run {recipe} --seeds 0 --workers 2 --out {tmp_path}"
    run(f"{line}/local")
    process = subprocess.Popen(
        command(f"{line}/ray --engine ray"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline, killed = time.monotonic() + 120, 0
    results = tmp_path / "ray" / "results.jsonl"
    while time.monotonic() < deadline and process.poll() is None and not killed:
        workers = task_workers()
        if results.exists() and workers:
            os.kill(workers[0], signal.SIGKILL)
            killed = workers[0]
        time.sleep(0.02)
    output, _ = process.communicate(timeout=HANG)
    assert killed
    assert process.returncode == 0, output
    assert len(scores(tmp_path / "ray")) == CELLS // 2
    assert scores(tmp_path / "ray") == scores(tmp_path / "local")
