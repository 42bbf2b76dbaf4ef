"""Steps on a CPU in both memory formats: what the rule of `memory_format=None` was chosen by.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.layouts

Both formats take turns in one process; what counts is the process's own time on the processor, so that other
programs matter little. It replaces the rows of this kind of processor in `layouts.csv`; `performance.py`
makes the table.
"""

import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.pages import table
from equipoise.files import whole_file
from equipoise.research.models import create_backbone

FILE = Path(__file__).parent / "layouts.csv"
FORMATS = ("contiguous", "channels_last")
ROUNDS = 9
NETWORKS = {
    "smallcnn": ("SmallCNN", 1, 50, 32),
    "mobilenet_v1": ("MobileNet v1", 3, 8, 96),
    "efficientnet_b0": ("EfficientNet-B0", 3, 8, 96),
    "resnet50": ("ResNet-50", 3, 4, 96),
}
"""Title, channels, images in a batch, and the side of an image."""
LEARNED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "nothing (`norm`)": ("norm", {}),
    "normalisation layers (`tent`)": ("tent", {}),
    "all weights (`tent`)": ("tent", {"parameters": "all"}),
}


def rows() -> Iterator[dict[str, Any]]:
    """A row for each network and what learns in it."""
    for name, (title, channels, batch, side) in NETWORKS.items():
        torch.manual_seed(0)
        model = create_backbone(name, 10, in_channels=channels).eval()
        x = torch.rand(batch, channels, side, side)
        for learned, (method, options) in LEARNED.items():
            adapters = {each: eq.create(method, model, memory_format=each, **options) for each in FORMATS}
            for _ in range(2):
                in_turn(adapters, x)
            found = [in_turn(adapters, x) for _ in range(ROUNDS)]
            low, _, high = quantiles((ratio(each) for each in found), n=4)
            yield {
                "processor": platform.machine(),
                "torch": torch.__version__,
                "network": title,
                "learns": learned,
                "contiguous_ms": round(1000 * median(each["contiguous"] for each in found), 2),
                "ratio": round(median(ratio(each) for each in found), 3),
                "low": round(low, 3),
                "high": round(high, 3),
            }


def in_turn(adapters: Mapping[str, eq.Adapter], x: Tensor) -> dict[str, float]:
    """Seconds on the processor of a step of each adapter."""
    seconds = {}
    for name, adapter in adapters.items():
        start = time.process_time()
        adapter(x)
        seconds[name] = time.process_time() - start
    return seconds


def ratio(seconds: Mapping[str, float]) -> float:
    """The time with the channels last over that of contiguous weights."""
    return seconds["channels_last"] / seconds["contiguous"]


def layouts_table() -> str:
    """The table of the page, a column for each kind of processor."""
    found = pd.read_csv(FILE)
    processors = sorted(set(found["processor"]))
    cells = {
        (
            row["processor"],
            row["network"],
            row["learns"],
        ): f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        for row in found.to_dict("records")
    }
    keys = list(dict.fromkeys(zip(found["network"], found["learns"], strict=True)))
    body = [[*key, *(cells.get((processor, *key), "-") for processor in processors)] for key in keys]
    return table(["", "what learns", *processors], body, narrow=True)


def main() -> None:
    """Measure on this machine, and write its rows."""
    found = pd.DataFrame(rows())
    if FILE.exists():
        others = pd.read_csv(FILE)
        found = pd.concat([others[others["processor"] != platform.machine()], found], ignore_index=True)
    with whole_file(FILE) as partial:
        found.to_csv(partial, index=False)


if __name__ == "__main__":
    main()
