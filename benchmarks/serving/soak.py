"""Memory of a server under hours of requests: sampled, written, and its growth computed.

    python -m benchmarks.serving.soak --minutes 30 --out benchmarks/serving/soak.csv

Clients send batches to their streams without a stop, and labels of some of the answers; the streams and a
history are read as the page reads them. The resident set of the server's process is sampled. After a third of
the time, caches, windows and snapshots are full: from there on the memory should be flat.
"""

import argparse
import asyncio
import csv
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serving.http_client import Measured, fetch, prepared, respond
from benchmarks.serving.pattern_stream import SHIFT, images, prepare
from benchmarks.serving.server_process import ServerProcess, started

ROWS = 16
BATCHES = 50
LABELLED_EVERY = 10
FLAT = 0.05
"""The growth of memory over the last two thirds that still counts as flat."""


def labels_request(stream: str, body: bytes, labels: list[int]) -> bytes:
    """A POST of the labels of an answer."""
    text = json.dumps({"request": json.loads(body)["request"], "labels": labels}).encode()
    head = f"POST /v1/labels?stream={stream} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


async def camera(url: str, stream: str, seed: int, until: float, pause: float, measured: Measured) -> None:
    """Send batches to a stream, and labels of one in `LABELLED_EVERY`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    made = [images(ROWS, seed * BATCHES + place, SHIFT) for place in range(BATCHES)]
    ready = [(prepared(f"/v1/predict?stream={stream}", x.numpy()), y.tolist()) for x, y in made]
    place = 0
    while time.perf_counter() < until:
        request, labels = ready[place % BATCHES]
        start = time.perf_counter()
        status, body = await respond(reader, writer, request)
        measured.add(status, body, time.perf_counter() - start)
        place += 1
        if status == 200 and place % LABELLED_EVERY == 0:
            status, body = await respond(reader, writer, labels_request(stream, body, labels))
            if status != 200:
                measured.add(status, body, 0.0)
        await asyncio.sleep(pause)
    writer.close()
    await writer.wait_closed()


async def sample(server: ServerProcess, until: float, every: float, measured: Measured, out: Path) -> None:
    """Write the memory of the server now and then, and look at its pages as a person would."""
    start = time.perf_counter()
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["minutes", "memory_mib", "requests", "p99_ms", "streams", "events"])
        while time.perf_counter() < until:
            await asyncio.sleep(min(every, max(until - time.perf_counter(), 0)))
            streams = await fetch(server.url, "/v1/streams")
            await fetch(server.url, f"/v1/streams/{streams[0]['name']}/history?since=0")
            recent = Measured(measured.seconds[-5000:])
            writer.writerow(
                [
                    round((time.perf_counter() - start) / 60, 3),
                    round(server.memory() / 2**20, 2),
                    len(measured.seconds),
                    round(recent.percentile(0.99), 2),
                    len(streams),
                    sum(len(stream["events"]) for stream in streams),
                ]
            )
            file.flush()


async def soak(server: ServerProcess, arguments: argparse.Namespace) -> Measured:
    """Everything at once until the time is over."""
    until, measured = time.perf_counter() + 60 * arguments.minutes, Measured()
    url, pause = server.url, arguments.pause_ms / 1000
    cameras = [camera(url, f"camera-{n}", n, until, pause, measured) for n in range(arguments.cameras)]
    every = min(arguments.every, 60 * arguments.minutes / 10)
    await asyncio.gather(sample(server, until, every, measured, arguments.out), *cameras)
    return measured


def growth(out: Path) -> tuple[float, float, float]:
    """Mean memory in MiB in the second and in the last third, and the growth by regression as a share."""
    with out.open() as file:
        rows = [(float(row["minutes"]), float(row["memory_mib"])) for row in csv.DictReader(file)]
    minutes, memory = np.array(rows).T
    late = minutes > minutes[-1] / 3
    middle, last = late & (minutes <= 2 * minutes[-1] / 3), minutes > 2 * minutes[-1] / 3
    slope = float(np.polyfit(minutes[late], memory[late], 1)[0])
    grown = slope * (minutes[-1] - minutes[late][0]) / memory[late][0]
    return float(memory[middle].mean()), float(memory[last].mean()), float(grown)


def main() -> None:
    """Soak, write, and say whether the memory was flat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cameras", type=int, default=8, help="clients, each with a stream of its own")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="between two requests of a client")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in the server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        with started("poise", Path(folder), arguments.threads) as server:
            measured = asyncio.run(soak(server, arguments))
        on_disk = sum(path.stat().st_size for path in (Path(folder) / "state").rglob("*") if path.is_file())
    middle, last, grown = growth(arguments.out)
    print(
        f"{len(measured.seconds):,} requests, statuses {measured.statuses}; memory {middle:.1f} MiB in the "
        f"second third, {last:.1f} MiB in the last, growth {grown:+.1%}; {on_disk / 2**20:.1f} MiB on disk: "
        f"{'flat' if abs(grown) <= FLAT else 'NOT FLAT'}"
    )


if __name__ == "__main__":
    main()
