"""Full results of `equipoise run`, in lines short enough to commit.

    python benchmarks/results/pack.py OUT [OUT ...]      # folders that `equipoise run` wrote

writes cells.jsonl (a run of a method on a stream: its scores by protocol and tempering) and streams.jsonl
(what the source model makes of a stream) beside this file. A result that several folders have is that of the
last one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
METRICS = ("accuracy", "ece", "entropy", "nll", "brier")
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
    "norms",
    "taus",
    "tau_std",
)


def packed_cells(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each run: {"scores": {"online/none": [accuracy, ECE, entropy, NLL, Brier]}}."""
    runs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        cell = line["cell"]
        place = tuple(cell[name] for name in CELL)
        run = runs.setdefault(
            place,
            {
                **{name: cell[name] for name in CELL},
                "batch_size": cell["batch_size"],
                "images": line["images"],
                "scores": {},
            },
        )
        confidence = sum(line["reliability"]["confidence"]) / line["images"]
        scores = [round(line["scores"][metric], 5) for metric in METRICS]
        run["scores"][f"{cell['protocol']}/{cell['tempering']}"] = [*scores, round(confidence, 5)]
    return [runs[place] for place in sorted(runs, key=str)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines, if it is there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write JSON lines without needless spaces."""
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


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
    write_lines(HERE / "cells.jsonl", packed_cells(list(cells.values())))
    short = [{name: rounded(line[name]) for name in STREAM} for line in streams.values()]
    write_lines(HERE / "streams.jsonl", sorted(short, key=str))


def rounded(value: Any) -> Any:
    """Numbers with four decimals."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
