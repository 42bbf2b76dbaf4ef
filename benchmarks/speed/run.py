"""The speed benchmark: what a step costs, plain, as the authors do it, and ours; writes a CSV file.

    python -m benchmarks.speed.run --out benchmarks/speed/local.csv

One row a measured cell, written as it comes; a second run goes on where the first stopped, and tries again
what failed. The most important cells come first. `performance.py` makes the tables.
"""

import argparse
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import equipoise as eq
from benchmarks.speed.cases import BACKBONES, METHODS, Case
from benchmarks.speed.deployed import deployed
from benchmarks.speed.flat_csv import Line, read_lines, write_lines
from benchmarks.speed.growth import (
    CLASSES,
    metrics_cost,
    over_classes,
    over_stream,
    stretched,
    swapped_memory,
)
from benchmarks.speed.measure import failure, measure, too_long
from benchmarks.speed.passes import passes

PAPER = ("smallcnn", "mobilenet_v1", "efficientnet_b0")
SECONDS = {"cuda": 1.0, "cpu": 8.0}  # of rounds for a cell, beyond the fewest


@dataclass(frozen=True)
class Cell:
    """One thing to measure."""

    kind: str
    backbone: str
    batch: int
    classes: int
    method: str

    def __str__(self) -> str:
        """The cell in words."""
        return f"{self.kind} {self.backbone} {self.batch} {self.classes} {self.method}"


def plan(backbones: list[str], quick: bool) -> Iterator[Cell]:
    """All cells, the most important first."""

    def steps(names: list[str], batch: int) -> Iterator[Cell]:
        for name in names:
            for label, method in METHODS.items():
                if method.fits(BACKBONES[name]):
                    yield Cell("step", name, batch, BACKBONES[name].classes, label)

    for batch in (50, 1):
        yield from (Cell("deployed", n, batch, BACKBONES[n].classes, "poise") for n in backbones)
    small = "smallcnn" in backbones
    yield from steps([name for name in backbones if name in PAPER], 50)
    if "efficientnet_b0" in backbones:
        yield Cell("memory", "efficientnet_b0", 50, BACKBONES["efficientnet_b0"].classes, "dec")
    if small:
        yield from (Cell("metrics", "smallcnn", 50, 10, label) for label in ("tent", "poise", "dec"))
        yield from (Cell("passes", "smallcnn", 50, 10, label) for label in METHODS)
    if not quick:
        yield from steps([name for name in backbones if name not in PAPER], 50)
        for batch in (1, 8, 200):
            yield from steps(backbones, batch)
    if small:
        yield from (Cell("stream", "smallcnn", 200, 10, label) for label in METHODS)
        for classes in () if quick else CLASSES:
            yield from (Cell("classes", "smallcnn", 50, classes, label) for label in METHODS)
    for name in () if quick else [name for name in backbones if name in PAPER]:
        yield from (
            Cell("compile", name, 50, BACKBONES[name].classes, label) for label in ("dec", "tent", "poise")
        )


def run(cell: Cell, device: str, seconds: float, limit: float) -> dict[str, Any]:
    """Measure a cell, or say why not."""
    if cell.kind == "stream":
        return over_stream(device, cell.method)
    if cell.kind == "classes":
        return over_classes(stretched(cell.classes, device), cell.method, seconds)
    case, method = Case(BACKBONES[cell.backbone], cell.batch, cell.classes, device), METHODS[cell.method]
    if cell.kind == "deployed":
        return deployed(case, seconds)
    if cell.kind == "metrics":
        return metrics_cost(case, cell.method, seconds)
    if cell.kind == "passes":
        return passes(case, cell.method)
    if cell.kind == "memory":
        return swapped_memory(case)
    if cell.kind == "compile":
        return measure(case, method, seconds, ["eager", "auto", "compile"])
    if why := too_long(case, method, limit):
        return {"skipped": why}
    return measure(case, method, seconds)


def attempt(cell: Cell, device: str, seconds: float, limit: float) -> dict[str, Any]:
    """Measure a cell; if that fails, say why, so that the others are still measured."""
    try:
        return run(cell, device, seconds, limit)
    except (eq.EquipoiseError, RuntimeError) as error:
        return {"failed": failure(error)}


def machine(device: str) -> dict[str, Any]:
    """What this ran on, and the command."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {
        "kind": "machine",
        "device": device,
        "name": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", "-m", "benchmarks.speed.run", *sys.argv[1:]]),
    }


def done(lines: Sequence[Line]) -> set[Cell]:
    """The cells that were measured, but for those that failed."""
    return {Cell(**line["cell"]) for line in lines if "cell" in line and "failed" not in line}


def main() -> None:
    """Measure what is not in the file yet, until the time is used up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a CSV file, which is added to")
    parser.add_argument("--quick", action="store_true", help="SmallCNN at batch 50 only, and fewer rounds")
    parser.add_argument("--only", default="", help=f"some of {','.join(BACKBONES)}")
    parser.add_argument(
        "--match", default="", help="a regular expression of cells, like 'step mobilenet_v1 50 .* dec'"
    )
    parser.add_argument("--budget", type=float, default=600.0, help="seconds to stop after (%(default)s)")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="a cell that takes more seconds is left out (%(default)s)"
    )
    options = parser.parse_args()
    backbones = [name for name in options.only.split(",") if name] or list(BACKBONES)
    if unknown := sorted(set(backbones) - set(BACKBONES)):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(BACKBONES)}")
    if options.quick:
        backbones = ["smallcnn"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = SECONDS[device] / (4 if options.quick else 1)
    lines, start = read_lines(options.out), time.perf_counter()
    before = done(lines)
    wanted = re.compile(options.match)
    left = [c for c in plan(backbones, options.quick) if c not in before and wanted.search(str(c))]
    lines.append(machine(device))
    with tqdm(total=len(left)) as bar:
        while left and time.perf_counter() - start < options.budget:
            cell = left.pop(0)
            bar.set_description(str(cell))
            lines.append({"cell": asdict(cell), **attempt(cell, device, seconds, options.limit)})
            write_lines(options.out, lines)
            bar.update()
    if left:
        names = sorted({f"{cell.kind} {cell.backbone} {cell.batch}" for cell in left})
        print(f"the time is used up; {len(left)} cells are left: {', '.join(names)}", file=sys.stderr)


if __name__ == "__main__":
    main()
