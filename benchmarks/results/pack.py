"""Packs the results of runs into the two files that results.md is written from.

    python benchmarks/results/pack.py OUT [OUT ...]      # folders that `equipoise run` wrote

writes cells.csv (a run of a method on a stream: its scores by protocol and tempering) and streams.csv (the
norms and temperatures of the source model on a stream) beside this file. A result that several folders have
is that of the last one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
METRICS = ("accuracy", "ece", "entropy", "nll", "brier", "confidence")
CELL = ("data", "backbone", "target", "tier", "seed", "label")
STREAM = (
    "data",
    "backbone",
    "target",
    "tier",
    "seed",
    "images",
    "t_min",
    "t_max",
    "h0",
    "kappa",
    "tau_std",
)


def packed_cells(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run, with columns as "online/none/accuracy"."""
    runs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        cell = line["cell"]
        about = {name: cell[name] for name in CELL}
        run = runs.setdefault(
            tuple(about.values()), {**about, "batch_size": cell["batch_size"], "images": line["images"]}
        )
        confidence = sum(line["reliability"]["confidence"]) / line["images"]
        for metric in METRICS:
            value = {**line["scores"], "confidence": confidence}[metric]
            run[f"{cell['protocol']}/{cell['tempering']}/{metric}"] = round(value, 5)
    return [runs[place] for place in sorted(runs, key=str)]


def packed_stream(line: dict[str, Any]) -> dict[str, Any]:
    """A row for a stream, with a column for each quantile: "norm_0.5" and "tau_0.5" are the medians."""
    row = {name: line[name] for name in STREAM}
    for name, values in (("norm", line["norms"]), ("tau", line["taus"])):
        row |= {f"{name}_{level}": value for level, value in zip(line["levels"], values, strict=True)}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines, if it is there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a CSV file beside this one."""
    pd.DataFrame(rows).astype({"tier": "Int64"}).to_csv(HERE / name, index=False)


def main() -> None:
    """Read the folders, write the two files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    folders = parser.parse_args().folders
    cells = {
        line["key"]: line
        for f in folders
        for line in read_lines(f / "results.jsonl")
        if line["status"] == "ok"
    }
    streams = {line["key"]: line for f in folders for line in read_lines(f / "streams.jsonl")}
    write("cells.csv", packed_cells(list(cells.values())))
    write("streams.csv", sorted(map(packed_stream, streams.values()), key=str))


if __name__ == "__main__":
    main()
