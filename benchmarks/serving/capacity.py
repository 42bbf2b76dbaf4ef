"""The capacity of a service: memory of a stream, cost of a switch, streams with eviction, images a second.

    OMP_NUM_THREADS=1 python -m benchmarks.serving.capacity benchmarks/serving/capacity.csv

Times are CPU time of the process (`time.process_time`), which other jobs on the machine change little.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import equipoise as eq
from benchmarks.serving.pattern_stream import CLASSES, images, trained_model
from equipoise.production.monitor import Monitor
from equipoise.production.server.limits import Limits
from equipoise.production.server.service import Service

NO_BOUND = 1e9
"""A latency bound in milliseconds that is never reached: every batch is learned from."""


class Figure(NamedTuple):
    """A line of the table."""

    part: str
    quantity: str
    value: float
    unit: str


def resident_bytes() -> int:
    """The memory of this process that is in RAM (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(adapter: eq.Adapter, streams: int) -> list[Figure]:
    """Many streams in memory: two batches and a snapshot each, so that the guard holds one."""
    with tempfile.TemporaryDirectory() as folder:
        limits = Limits(latency_ms=NO_BOUND, resident=streams)
        with Service(adapter, folder, limits=limits) as service:
            x = images(1, 7)[0].numpy()
            for index in range(20):  # the first streams make what all share
                service.submit(f"first {index}", x).result()
            before = resident_bytes()
            for index in range(streams - 20):
                service.submit(f"camera-{index}", x).result()
                service.snapshot(f"camera-{index}")
            grown = (resident_bytes() - before) / (streams - 20)
    tensors = adapter.snapshot().bytes
    return [
        Figure("memory", "streams in memory", streams, "streams"),
        Figure("memory", "tensors that adapt in a stream", tensors, "bytes"),
        Figure(
            "memory", "tensors held for a stream (its state and the guard's newest)", 2 * tensors, "bytes"
        ),
        Figure("memory", "resident memory a stream, all included", grown, "bytes"),
        Figure("memory", "samples and curves of a monitor after 600 batches", monitor_bytes(), "bytes"),
    ]


def monitor_bytes() -> float:
    """The arrays of a monitor whose window and curves are full."""
    monitor = Monitor(window=500, keep=500)
    for _ in range(600):
        monitor.observe(torch.zeros(8, CLASSES), None)
    return float(sum(tensor.nbytes for tensor in monitor.state()["tensors"].values()))


def cpu_times(call: Callable[[], object], times: int) -> float:
    """The median CPU time of a call in seconds."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def switching(adapter: eq.Adapter) -> list[Figure]:
    """The cost of a switch, out and in, as a share of a step of the same stream."""
    figures = []
    one = adapter.snapshot()

    def switch() -> None:
        adapter.snapshot()
        adapter.restore(one)

    cost = cpu_times(switch, 200)
    figures.append(Figure("switching", "a switch between two streams", 1000 * cost, "ms"))
    for rows in (1, 8, 50):
        x = images(rows, 8)[0]
        step = cpu_times(partial(adapter, x), 30)
        figures += [
            Figure("switching", f"a step with {rows} images", 1000 * step, "ms"),
            Figure("switching", f"a switch as a share of a step with {rows} images", cost / step, ""),
        ]
    return figures


def eviction(adapter: eq.Adapter, streams: int, resident: int) -> list[Figure]:
    """Many streams of which few are in memory; some come back and must go on bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        limits = Limits(latency_ms=NO_BOUND, resident=resident)
        with Service(adapter, folder, limits=limits) as service:
            first, second = (images(1, seed)[0].numpy() for seed in (9, 10))
            for index in range(2 * resident):
                service.submit(f"first {index}", first).result()
            before, begun = resident_bytes(), time.process_time()
            for index in range(streams - 2 * resident):
                service.submit(f"camera-{index}", first).result()
            new, grown = time.process_time() - begun, resident_bytes() - before
            again = min(200, streams - 3 * resident)
            begun = time.process_time()
            answers = [service.submit(f"camera-{index}", second).result() for index in range(again)]
            back = time.process_time() - begun
            disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            found = len(service.streams())
    adapter.reset()
    adapter(torch.from_numpy(first))
    expected = adapter(torch.from_numpy(second)).softmax(1).numpy()
    equal = all(np.array_equal(answer.probabilities, expected) for answer in answers)
    made = streams - 2 * resident
    return [
        Figure("eviction", "streams", found, "streams"),
        Figure("eviction", "of them in memory", resident, "streams"),
        Figure("eviction", "a new stream: first batch, and another stream to disk", 1000 * new / made, "ms"),
        Figure("eviction", "a batch of a stream that comes from disk", 1000 * back / again, "ms"),
        Figure("eviction", "streams that went on bit for bit", again if equal else 0, f"of {again}"),
        Figure("eviction", "resident memory a stream on disk", grown / made, "bytes"),
        Figure("eviction", "disk a stream", disk / streams, "bytes"),
    ]


def answered(service: Service, inputs: np.ndarray[Any, Any]) -> object:
    """The answer to a request."""
    return service.submit("camera", inputs).result()


def throughput(adapter: eq.Adapter, model: nn.Module) -> list[Figure]:
    """Images a second and core, one stream, for the model alone and for a service."""
    figures = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(adapter, folder, limits=Limits(latency_ms=NO_BOUND)) as service,
    ):
        for rows in (1, 8, 50):
            x = images(rows, 11)[0]
            with torch.inference_mode():
                bare = cpu_times(partial(model, x), 30)
            served = cpu_times(partial(answered, service, x.numpy()), 30)
            for name, seconds in (("the model alone", bare), ("the service", served)):
                quantity = f"{name}, batches of {rows}"
                figures.append(Figure("throughput", quantity, rows / seconds, "images/s a core"))
    return figures


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--streams", type=int, default=1_000, help="in memory")
    parser.add_argument("--evicted", type=int, default=10_000, help="with eviction")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = trained_model()
    x, y = images(200, 1)
    source = eq.rehearse(model, list(zip(x.split(50), y.split(50), strict=True)), shifts=8, progress=False)
    adapter = eq.create("poise", model, source)
    figures: list[Figure] = []
    measures: list[Callable[[], list[Figure]]] = [
        lambda: switching(adapter),
        lambda: throughput(adapter, model),
        lambda: memory(adapter, options.streams),
        lambda: eviction(adapter, options.evicted, 100),
    ]
    for measure in measures:
        figures += measure()
        with options.csv.open("w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(Figure._fields)
            writer.writerows((f.part, f.quantity, f"{f.value:.4g}", f.unit) for f in figures)
    for figure in figures:
        print(f"{figure.part:12}{figure.quantity:70}{figure.value:12.4g} {figure.unit}", file=sys.stdout)


if __name__ == "__main__":
    main()
