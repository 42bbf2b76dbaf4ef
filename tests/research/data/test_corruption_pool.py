"""Corrupted images from several processes; most of the time is that of starting them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import DataError
from equipoise.research.data import Reader, corruption_pool
from equipoise.research.data.corruption_pool import make_corrupted, probe, seed_of
from equipoise.research.data.corruptions.arrays import Pixels
from tests.support.waiting import runs, wait_until

COUNT = 300

CODE = """
import os, signal, sys
import numpy as np
from equipoise.research.data import Reader
from equipoise.research.data.corruption_pool import _pool, make_corrupted, seed_of

if __name__ == "__main__":
    images = np.random.default_rng(0).integers(0, 256, (300, 16, 16, 3), dtype=np.uint8)
    seeds = [seed_of(f"val_{number}") for number in range(300)]
    told = []
    reader = Reader(workers=2, progress=lambda done, total: told.append((done, total)))
    np.save(sys.argv[1], make_corrupted(images, "gaussian_noise", 3, seeds, reader))
    processes = set(_pool(2)._processes)
    again = make_corrupted(images, "gaussian_noise", 3, seeds, reader)
    same = (again == np.load(sys.argv[1])).all()
    print(len(processes), processes == set(_pool(2)._processes), same, told[-1])
    print(*processes, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def some_images() -> tuple[Pixels, list[int]]:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    return images, [seed_of(f"val_{number}") for number in range(COUNT)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_two_processes_make_the_same_pixels_as_one_and_die_with_the_first(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "made.npy"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    first, second = done.stdout.splitlines()
    assert first == f"2 True True ({COUNT}, {COUNT})"  # the processes are kept
    images, seeds = some_images()
    assert np.array_equal(
        np.load(tmp_path / "made.npy"), make_corrupted(images, "gaussian_noise", 3, seeds, Reader())
    )
    wait_until(lambda: not any(runs(int(pid)) for pid in second.split()), "the processes end with the first")


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    images, seeds = some_images()
    told: list[tuple[int, int]] = []
    reader = Reader(progress=lambda *done: told.append(done))
    whole = make_corrupted(images, "impulse_noise", 2, seeds, reader)
    assert told == [(128, 300), (256, 300), (300, 300)]
    monkeypatch.setattr(corruption_pool, "_CHUNK", 77)
    assert np.array_equal(make_corrupted(images, "impulse_noise", 2, seeds, reader), whole)


def test_a_process_that_dies_is_told_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def map(self, *_: object) -> Iterator[Pixels]:
            raise BrokenProcessPool

    pools: list[Broken] = []

    @lru_cache
    def pool(workers: int) -> Broken:
        pools.append(Broken())
        return pools[-1]

    monkeypatch.setattr(corruption_pool, "_pool", pool)
    images, seeds = some_images()
    for count in (1, 2):
        with pytest.raises(DataError, match=r"a process that makes fog died .* try fewer workers"):
            make_corrupted(images, "fog", 1, seeds, Reader(workers=2))
        assert len(pools) == count


def test_seeds_are_always_the_same_and_fit_a_float() -> None:
    assert seed_of("val_0") == 4549704137553
    seeds = {seed_of(f"val_{number}") for number in range(10_000)}
    assert len(seeds) == 10_000
    assert all(int(float(seed)) == seed for seed in seeds)


def test_a_probe_tells_makers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = probe("fog", 2, side=16)
    assert before == probe("fog", 2, side=16)
    assert len({before, probe("fog", 3, side=16), probe("snow", 2, side=16)}) == 3
    monkeypatch.setattr(corruption_pool, "_QUALITY", 84)
    assert probe("fog", 2, side=16) != before
