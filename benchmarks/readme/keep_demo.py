"""Keeps the numbers of a run of the demo, which README.md quotes, and its picture.

make demo
python -m benchmarks.readme.keep_demo demo
"""

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import DOCS, write
from equipoise.research.report.results import read_results
from equipoise.research.report.story import Story, Told, tell

KEPT = Path(__file__).parent / "demo.json"


def summary(story: Story) -> dict[str, Any]:
    """What each method says and how often it is right, in each segment; and how the estimate agrees."""
    return {"methods": {told.method: _method(told) for told in story.methods}, "images": story.total}


def _method(told: Told) -> dict[str, Any]:
    segments = told.segments[["says", "right", "ece"]].astype(float).T.to_dict()
    estimated = told.estimated._asdict() if told.estimated else None
    return {"segments": segments, "ece": float(told.whole["ece"]), "estimated": estimated}


def machine() -> dict[str, str | int]:
    """Where the run was made: numbers of another kind of machine differ by a few points."""
    return {
        "kind": platform.machine(),
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def main(folder: Path) -> None:
    """Keep the run in a folder that `equipoise demo --out` wrote."""
    frame = read_results(folder / "full").frame
    kept = {"machine": machine(), **summary(tell(frame))}
    write(KEPT, json.dumps(kept, indent=1) + "\n")
    shutil.copyfile(folder / "picture.png", DOCS / "demo.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
