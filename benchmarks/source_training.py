"""Source training on a GPU: the step as one CUDA graph against the same step taken kernel by kernel.

    python -m benchmarks.source_training [--steps 30] [--json FILE]

Both are in bfloat16 with repeatable algorithms, at the recipes' batch size of 64; "plain" is the usual loop,
with weights in PyTorch's own order. Both in one process, in turns; the ratio is of medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from equipoise.research.data.images import Images
from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.repeatable import repeatable, seeded
from equipoise.research.experiment.trained_model import on_device
from equipoise.research.experiment.training import TrainingStep, make_optimizer
from equipoise.research.models import create_backbone

BATCH = 64
CASES = (
    ("smallcnn", 32),
    ("mobilenet_v1", 128),
    ("mobilenet_v1", 227),
    ("efficientnet_b0", 128),
    ("efficientnet_b0", 227),
)
SETTINGS = Training(optimizer="rmsprop", learning_rate=2e-4, epochs=1, batch_size=BATCH)


class Plain:
    """The loop that one would write."""

    def __init__(self, model: nn.Module, images: Images) -> None:
        self.model = model.cuda().train()
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-4, alpha=0.9, eps=1e-7)
        self.pixels, self.labels = images.pixels.cuda(), images.labels.cuda()

    def __call__(self, rows: torch.Tensor) -> None:
        """One step on the images of these rows."""
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(self.pixels[rows].float()), self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def milliseconds(step: Callable[[torch.Tensor], None], rows: torch.Tensor, steps: int) -> float:
    """The mean of a step's time."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step(rows)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def measure(name: str, size: int, steps: int) -> dict[str, str | int | float]:
    """One row: the medians over five turns of each."""
    with repeatable(), seeded(0):
        side = 32 if name == "smallcnn" else 64
        images = Images(
            torch.randint(0, 256, (512, 3, side, side), dtype=torch.uint8), torch.randint(0, 200, (512,))
        )
        models = [
            create_backbone(name, 200, input_size=None if name == "smallcnn" else size) for _ in range(2)
        ]
        ours = on_device(models[1], torch.device("cuda")).train()
        ways: dict[str, Callable[[torch.Tensor], None]] = {
            "plain": Plain(models[0], images),
            "graph": TrainingStep(ours, make_optimizer(ours, SETTINGS), images, BATCH),
        }
        rows = torch.arange(BATCH, device="cuda")
        for way in ways.values():
            milliseconds(way, rows, 5)
        turns = [{name: milliseconds(way, rows, steps) for name, way in ways.items()} for _ in range(5)]
    plain, graph = (statistics.median(turn[way] for turn in turns) for way in ways)
    ratios = sorted(turn["plain"] / turn["graph"] for turn in turns)
    return {
        "backbone": name,
        "pixels": size,
        "plain ms": round(plain, 2),
        "graph ms": round(graph, 2),
        "ratio": round(plain / graph, 2),
        "lowest": round(ratios[0], 2),
        "highest": round(ratios[-1], 2),
        "images/s": round(BATCH / graph * 1e3),
    }


def main() -> None:
    """Measure each case and print it as a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "this needs an NVIDIA GPU\n")
    rows = []
    for name, size in CASES:
        rows.append(measure(name, size, options.steps))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
