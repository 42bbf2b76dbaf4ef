"""Throughput and latency of a service against the bare model behind the same HTTP door.

    python -m benchmarks.serving.load --out benchmarks/serving/load.csv

Each server runs in a process of its own; this process sends batches of SmallCNN's inputs as npy over kept
connections, each client the next batch when the last was answered. Servers take turns, and the median of the
rounds is written.
"""

import argparse
import asyncio
import csv
import itertools
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.serving.http_client import prepared, run_clients
from benchmarks.serving.load_table import LEAST_THROUGHPUT, MOST_P99
from benchmarks.serving.pattern_stream import SHIFT, images, prepare
from benchmarks.serving.server_process import ServerProcess, started

KINDS = ("bare", "poise")
BATCHES = 20


def requests_of(clients: int, rows: int, streams: int) -> list[list[bytes]]:
    """The requests of each client; clients share the streams."""
    found = []
    for number in range(clients):
        path = f"/v1/predict?stream=load-{clients}-{rows}-{streams}-{number % streams}"
        parts = [images(rows, 10_000 + number * BATCHES + place, SHIFT)[0] for place in range(BATCHES)]
        found.append([prepared(path, part.numpy()) for part in parts])
    return found


def measure(server: ServerProcess, clients: int, rows: int, streams: int, seconds: float) -> dict[str, float]:
    """One measurement, after a second to get warm."""
    requests = requests_of(clients, rows, streams)
    asyncio.run(run_clients(server.url, requests, 1.0))
    measured, took = asyncio.run(run_clients(server.url, requests, seconds))
    answered = len(measured.seconds)
    return {
        "requests_per_s": answered / took,
        "images_per_s": answered * rows / took,
        "p50_ms": measured.percentile(0.5),
        "p99_ms": measured.percentile(0.99),
        "learned": measured.learned / max(answered, 1),
        "source_answered": measured.late / max(answered, 1),
        "refused": float(sum(measured.statuses.values()) - answered),
    }


def cases(arguments: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    """Numbers of clients, of rows in a request, and of streams that the clients share."""
    for clients, rows in itertools.product(arguments.clients, arguments.rows):
        yield from ((clients, rows, streams) for streams in arguments.streams if streams <= clients)


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All measurements, the median of the rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        bare, poise = (started(kind, Path(folder), arguments.threads) for kind in KINDS)
        with bare as one, poise as other:
            servers = dict(zip(KINDS, (one, other), strict=True))
            for case in cases(arguments):
                rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
                for _ in range(arguments.rounds):
                    for kind, server in servers.items():
                        rounds[kind].append(measure(server, *case, arguments.seconds))
                for kind, found in rounds.items():
                    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
                    named = dict(zip(("clients", "rows", "streams"), case, strict=True))
                    rows.append({"service": kind, **named, **middle})
                report(rows[-2], rows[-1])
    return rows


def report(bare: dict[str, Any], poise: dict[str, Any]) -> None:
    """Print a comparison."""
    throughput, p99 = poise["requests_per_s"] / bare["requests_per_s"], poise["p99_ms"] / bare["p99_ms"]
    verdict = "kept" if throughput >= LEAST_THROUGHPUT and p99 <= MOST_P99 else "MISSED"
    print(
        f"{bare['clients']:4} clients x {bare['rows']:3} rows, {bare['streams']} streams: "
        f"bare {bare['requests_per_s']:7.1f}/s, poise "
        f"{poise['requests_per_s']:7.1f}/s ({throughput:.0%}); p99 {bare['p99_ms']:7.1f} and "
        f"{poise['p99_ms']:7.1f} ms ({p99:.2f}x); learned {poise['learned']:.0%}, by the source model "
        f"{poise['source_answered']:.0%}, refused {poise['refused']:.0f}: {verdict}",
        flush=True,
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 200])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in each server")
    arguments = parser.parse_args()
    rows = run(arguments)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


if __name__ == "__main__":
    main()
