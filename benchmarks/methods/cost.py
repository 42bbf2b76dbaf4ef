"""Measures what a step of every registered method costs, in plain forwards, and writes cost.csv.

python -m benchmarks.methods.cost               # again to go on
python -m benchmarks.methods.cost tent shot_im  # these, again
"""

import argparse
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.speed.cases import BACKBONES, Backbone, Case
from benchmarks.speed.measure import Memory, failure, ratios, seconds_of, turns
from benchmarks.speed.passes import Counting
from equipoise.core.state import NewMemoryError
from equipoise.files import whole_file
from equipoise.testing.subject import captures, unread_step

CSV = Path(__file__).with_name("cost.csv")
NETWORKS = (BACKBONES["smallcnn"], replace(BACKBONES["mobilenet_v1"], size=32, cpu_size=32))
BATCH, FEW = 64, 4
"""Samples of a batch, so that methods that learn from every 64 samples do; and of one that takes too long."""
TOO_LONG = 12.0
"""Seconds of a step that are too many."""
ROUNDS_FOR = 3.0
"""Seconds in which rounds begin, after the first five."""

_EVERY = {"margin": 1.01, "epsilon": 2.0}
OPEN: dict[str, dict[str, Any]] = {
    "cotta": {"confidence": 1.0},  # views of every batch
    "deyo": {"margin": 1.01, "min_drop": -1.0},
    "eata": _EVERY,
    "eta": _EVERY,
    "memo": {"views": 32},  # half of its default
    "poem": {"margin": 1.01},
    "pseudo_label": {"confidence": 0.0},
    "rdumb": {"options": _EVERY},
    "sar": {"margin": 1.01, "reset_below": 0.0},
    "sotta": {"confidence": 0.0},
}
"""Options under which filters let every sample through, for the most that a step costs: random networks are
never sure."""


def plain(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model in eval mode, without gradients."""

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(x)
        return logits

    return forward


def adapter_of(method: str, case: Case) -> eq.Adapter:
    """An adapter whose filters are open."""
    return eq.create(method, case.network(), case.source(), **OPEN.get(method, {}))


def passes(method: str, case: Case) -> dict[str, float]:
    """The samples that go forwards for each sample of a batch, and the backwards of a step, both counted."""
    model, (first, second, *_) = Counting(case.network()), case.images()
    source = eq.SourceStatistics.measure(model, [first], fisher=True, features=True, progress=False)
    adapter = eq.create(method, model, source, **OPEN.get(method, {}))
    adapter(first)
    Counting.samples = Counting.backwards = 0
    adapter(second)
    return {"forwarded": Counting.samples / len(second), "backwards": Counting.backwards}


def captured(adapter: eq.Adapter, x: Tensor) -> bool:
    """Whether a step can be a CUDA graph: the method allows it, and the host reads no tensor in it."""
    if not captures(adapter, x):
        return False
    try:
        unread_step(adapter, x, refusing=True)
    except (eq.errors.ConformanceError, NewMemoryError):
        return False
    return True


def case_of(method: str, network: Backbone, device: str) -> Case:
    """Batches of 64 samples, or of a few where a step would take too long."""
    few = Case(network, FEW, network.classes, device)
    adapter = adapter_of(method, few)
    adapter(few.images()[0])
    slow = seconds_of(adapter, few.images()[:1]) * BATCH / FEW > TOO_LONG
    return few if slow else Case(network, BATCH, network.classes, device)


def cost(method: str, network: Backbone, device: str) -> dict[str, Any]:
    """A row of the file: a step beside a plain forward of the same batches, in turn."""
    case = case_of(method, network, device)
    model, images = case.network(), case.prepare()
    with Memory(device) as alone:
        plain(model)(images[0])
    with Memory(device) as memory:
        adapter = adapter_of(method, case)
        for x in images[:2] if device == "cpu" else images:  # a graph is captured at the third batch
            adapter(x)
    times = turns({"plain": plain(model), method: adapter}, images, 1, ROUNDS_FOR)
    over, low, high = ratios(times, method, "plain")
    return {
        "batch": case.batch,
        "used": 0 if adapter.last is None else adapter.last.used,
        "plain_ms": round(1000 * median(times["plain"]), 3),
        "plain_forwards": over,
        "low": low,
        "high": high,
        **(passes(method, case) if network is NETWORKS[0] else {}),  # the same on all
        "plain_peak_mib": round(alone.peak / 2**20, 1),
        "peak_mib": round(memory.peak / 2**20, 1),
        "execution": adapter.execution,
        "captured": captured(adapter, images[0]) if device == "cpu" else "graph" in adapter.execution,
    }


def machine(device: str) -> dict[str, str]:
    """The machine, in words."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"one core of a CPU ({platform.machine()})"
    return {"machine": name, "torch": torch.__version__.partition("+")[0]}


def main() -> None:
    """Measure what is missing, or the methods that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="measured again; none: those that the file lacks")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=200, help="seconds after which no measurement begins")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # poise is not rehearsed, some batches are small
    rows: list[dict[Any, Any]] = pd.read_csv(CSV).to_dict("records") if CSV.exists() else []
    began = time.perf_counter()
    for network in NETWORKS:
        for method in given.methods or eq.list_methods():
            key = {"method": method, "network": network.title, "device": given.device}
            others = [row for row in rows if any(row[name] != value for name, value in key.items())]
            if (len(others) < len(rows) and not given.methods) or time.perf_counter() - began > given.budget:
                continue
            try:
                found = cost(method, network, given.device)
            except eq.EquipoiseError as error:
                found = {"failed": failure(error)}
            rows = [*others, {**key, **found, **machine(given.device)}]
            print(method, network.title, found)
            with whole_file(CSV) as partial:
                pd.DataFrame(rows).sort_values(list(key)).to_csv(partial, index=False)


if __name__ == "__main__":
    main()
