"""Measure what prediction sets and decisions cost beside the step of rehearsed `poise`.

    python -m benchmarks.decisions.cost OUT.csv

A row for each network, on the CPU or, where there is one, the GPU: medians of the time of batches of 50,
until the device is done.
"""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.decisions.baselines import ACCURACY, BATCH, COVERAGE
from benchmarks.estimators.subjects import mlp
from equipoise.errors import RehearsalWarning
from equipoise.research.models import SmallCNN, create_backbone

BATCHES, WARM = 60, 10
HELD_OUT = 300
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Networks by name, with the shape of an input; the one whose rehearsal takes long only on a GPU."""
    torch.manual_seed(0)
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "MLP": (mlp(8, 2, "batch norm"), (8,)),
        "SmallCNN": (SmallCNN(), (1, 32, 32)),
    }
    if DEVICE.type == "cuda":
        made["MobileNet"] = (create_backbone("mobilenet_v1", 200), (3, 96, 96))
    return made


def milliseconds(call: Callable[[], Any]) -> float:
    """The time that a call takes, until the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started)


def measured(network: str, model: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """The row of a network, untrained, on random inputs with any labels."""
    model = model.to(DEVICE).eval()

    def drawn(count: int) -> Tensor:
        return torch.randn(count, *shape, device=DEVICE) * (1 if len(shape) == 1 else 50) + 100

    x = drawn(HELD_OUT)
    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    y = torch.arange(HELD_OUT) % classes  # whether they are right does not matter here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RehearsalWarning)  # few samples
        adapter = eq.wrap(model, (x, y), shifts=8, samples=HELD_OUT, progress=False, check_held_out=False)
    times: dict[str, list[float]] = {"step": [], "sets": [], "decide": []}
    answers: list[Tensor] = []

    def step(batch: Tensor) -> None:
        answers.append(adapter(batch))

    for _ in range(BATCHES):
        times["step"].append(milliseconds(partial(step, drawn(BATCH))))
        answer = answers.pop()
        times["sets"].append(milliseconds(partial(adapter.sets, logits=answer, coverage=COVERAGE)))
        times["decide"].append(milliseconds(partial(adapter.decide, logits=answer, accuracy=ACCURACY)))
    found = {f"{name}_ms": float(torch.tensor(own[WARM:]).median()) for name, own in times.items()}
    return {"device": DEVICE.type, "network": network, "threads": torch.get_num_threads()} | found


def main() -> None:
    """Measure all networks, and add their rows to the file."""
    path = Path(sys.argv[1])
    rows = pd.DataFrame(measured(name, *own) for name, own in networks().items())
    before = [pd.read_csv(path)] if path.exists() else []
    pd.concat([*before, rows], ignore_index=True).to_csv(path, index=False, float_format="%.4f")
    print(rows.to_string())


if __name__ == "__main__":
    main()
