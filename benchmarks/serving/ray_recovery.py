"""Replicas on a local Ray that are killed in mid-stream: seconds until the next answer, batches lost.

`python -m benchmarks.serving.ray_recovery --out benchmarks/serving/ray_recovery.csv` starts two replicas of a
SmallCNN that adapts by TENT, and kills the replica of one stream again and again. Each kill comes after
another number of batches since the last state on disk. Also timed: an answer through Ray, and one of a
service in this process, to batches of 16 images of 32 x 32.
"""

import argparse
import csv
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import equipoise as eq
from equipoise.production.server.errors import ReplicaLostError
from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.limits import Limits
from equipoise.production.server.ray.service import RayService
from equipoise.production.server.service import Service

SAVE_EVERY = 10
BATCH = np.random.default_rng(0).normal(size=(16, 1, 32, 32)).astype(np.float32)


def make_service(folder: Path) -> Service:
    """The service of a replica."""
    torch.manual_seed(0)
    adapter = eq.create("tent", eq.models.SmallCNN(10), learning_rate=1e-5)
    return Service(adapter, folder, limits=Limits(save_every=SAVE_EVERY))


def answer(service: ServiceLike, stream: str) -> int:
    """Send a batch until it is answered; the number of times that it was refused."""
    for refused in range(100):
        try:
            service.submit(stream, BATCH).result()
        except ReplicaLostError:
            continue
        return refused
    raise RuntimeError("refused a hundred times")


def milliseconds(service: ServiceLike, count: int = 100) -> float:
    """The median time of an answer, one request at a time."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        service.submit("timed", BATCH).result()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def killed(service: RayService, round_: int) -> dict[str, object]:
    """One kill of the replica that owns a stream."""
    stream = "gate"
    for _ in range(20 + 2 * round_):
        answer(service, stream)
    before = service.status(stream).batches
    os.kill(service.replicas()[service.owner(stream)].process, signal.SIGKILL)
    start = time.monotonic()
    refused = answer(service, stream)
    seconds = time.monotonic() - start
    lost = before + 1 - service.status(stream).batches
    row = {"kill": round_, "seconds": round(seconds, 1), "refused": refused, "lost": lost}
    return {**row, "save_every": SAVE_EVERY, "load": os.getloadavg()[0]}


def main() -> None:
    """Kill, and write a row for each time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with make_service(folder / "local") as local:
            answer(local, "timed")
            alone = milliseconds(local)
        start = time.monotonic()
        with RayService(make_service, folder / "ray", replicas=2) as service:
            print(f"started in {time.monotonic() - start:.1f} s")
            answer(service, "timed")
            print(
                f"an answer takes {milliseconds(service):.1f} ms through Ray, {alone:.1f} ms in this process"
            )
            rows = [killed(service, round_) for round_ in range(options.kills)]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
