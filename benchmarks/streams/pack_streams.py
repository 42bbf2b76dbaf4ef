"""Packs the results of stream recipes into the file that docs/streams.md is written from.

    python -m benchmarks.streams.pack_streams OUT [OUT ...]      # folders that `equipoise run` wrote

writes cells.csv beside this file, or into `--folder`: a row for a run of a method over a stream with one
tempering. A result that several folders have is that of the last one. Lines of one method with different
code or options, or of one stream with different models or images, are refused.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.results.pack import check_same, command_line, read_lines
from equipoise.errors import DataError
from equipoise.files import whole_file

HERE = Path(__file__).parent
STREAM = ("data", "backbone", "target", "tier", "seed", "order")
"""The parts of a cell that tell one stream and its model from another."""
CELL = (*STREAM, "label", "tempering")
"""Those that tell one row from another."""
SAME = {
    STREAM: ("model", "stream", "order_options", "domain_images", "batch_size"),
    ("data", "label"): ("code", "options"),
    ("data", "tempering"): ("rehearsal",),
}
"""The parts of a cell that must be the same in all lines that share the others."""
NOT_COMPARED = ("seed", "t_min", "t_max")
"""Options that follow the cell: its seed, and the range of its network."""


def packed(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each run and tempering."""
    done = [line for line in lines if line["status"] == "ok" and line["cell"]["protocol"] == "online"]
    latest = {tuple(line["cell"][name] for name in CELL): line for line in done}
    if not latest:
        raise DataError("expected at least one finished result, got none")
    for place, line in latest.items():
        if "domain_images" not in line["cell"] or "nll" not in line.get("bins", {}):
            raise DataError(
                f"{', '.join(map(str, place))}: expected a line of a stream recipe, with its NLL over time"
            )
    check_same([comparable(line["cell"]) for line in latest.values()], SAME)
    return pd.DataFrame([row_of(latest[place]) for place in sorted(latest, key=str)])


def comparable(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell without the options that differ between runs of one method."""
    options = cell["options"]
    return {**cell, "options": {name: options[name] for name in options if name not in NOT_COMPARED}}


def row_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a line: scores, the estimate of the accuracy, and the accuracy and NLL over time.

    `accuracy_by_domain` and `nll_by_domain` are of the domains in their order, `accuracy_by_pass` of the
    passes of a stream that recurs: numbers with blanks between them.
    """
    cell, estimate = line["cell"], line.get("estimate", {})
    scores = {name: line["scores"][name] for name in ("accuracy", "ece", "nll")}
    scores["confidence"] = sum(line["reliability"]["confidence"]) / line["images"]
    scores |= {"estimate": estimate.get("value"), "off": estimate.get("off")}
    passes = cell.get("order_options", {}).get("passes", 1)
    visits = round(line["images"] / cell["domain_images"])
    if passes > 1 and len(line["bins"]["images"]) != visits:
        raise DataError(
            f"{cell['label']}: expected a bin for each of {visits} visits to a domain, got "
            f"{len(line['bins']['images'])} bins"
        )
    images, correct, nll = (by_visit(line["bins"], name, passes) for name in ("images", "correct", "nll"))
    over_time = {
        "accuracy_by_domain": written(correct.sum(0) / images.sum(0)),
        "nll_by_domain": written((nll * images).sum(0) / images.sum(0)),
        "accuracy_by_pass": written(correct.sum(1) / images.sum(1)) if passes > 1 else "",
    }
    in_a_row = re.search(r"64 images in a row are of ([\d.]+) of", line.get("described", ""))
    return {
        **{name: cell[name] for name in CELL},
        "batch_size": cell["batch_size"],
        "domain_images": cell["domain_images"],
        "images": line["images"],
        "no_class": line.get("no_class", 0),
        "classes_in_a_row": float(in_a_row[1]) if in_a_row else None,
        **{name: line["made"][name] for name in ("device", "torch")},
        **{name: None if value is None else round(value, 5) for name, value in scores.items()},
        **over_time,
    }


def by_visit(bins: Mapping[str, Any], name: str, passes: int) -> NDArray[np.float64]:
    """A quantity for each pass and domain: counts are summed over the bins of a visit, means weighted."""
    values, images = np.array(bins[name], float), np.array(bins["images"], float)
    if passes > 1:  # a bin for each visit
        return values.reshape(passes, -1)
    ends = np.cumsum([segment["bins"] for segment in bins["segments"]])[:-1]
    if name != "nll":
        return np.array([[part.sum() for part in np.split(values, ends)]])
    weighted = zip(np.split(values * images, ends), np.split(images, ends), strict=True)
    return np.array([[part.sum() / max(count.sum(), 1) for part, count in weighted]])


def written(values: NDArray[np.float64]) -> str:
    """Numbers with blanks between them."""
    return " ".join(f"{value:.4f}" for value in values)


def main() -> None:
    """Read the folders, write the file."""
    given = command_line(__doc__, HERE).parse_args()
    cells = packed([line for out in given.outs for line in read_lines(out / "results.jsonl")])
    with whole_file(given.folder / "cells.csv") as partial:
        cells.astype({"tier": "Int64"}).to_csv(partial, index=False, encoding="utf-8")


if __name__ == "__main__":
    main()
