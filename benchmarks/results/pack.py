"""Packs the results of runs into the two files that results.md is written from.

    python -m benchmarks.results.pack OUT [OUT ...]      # folders that `equipoise run` wrote

writes cells.csv (a run of a method on a stream: its scores by protocol and tempering) and streams.csv (the
norms and temperatures of the source model on a stream) beside this file, or into `--folder`. A result that
several folders have is that of the last one. With `--add`, rows of a data set and network that no
folder has stay in the files. Results of one method with different code or options, or of one
stream with different models or images, do not belong together and are refused.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from equipoise.errors import DataError
from equipoise.files import whole_file

HERE = Path(__file__).parent
METRICS = ("accuracy", "ece", "nll", "confidence")
"""The scores of every tempering; confidence is the mean of the largest probability."""
MORE_METRICS = {"none": ("entropy", "brier"), "mean": ("entropy",)}
"""Scores of some temperings: the paper prints the entropy of rivals' raw answers, of DEC's by the mean."""
MET = ("data", "backbone", "target", "tier", "seed")
"""The columns that tell one stream and its model from another."""
CELL = (*MET, "label")
"""The columns that tell one row from another."""
SAME = {MET: ("model", "stream", "order", "images"), CELL: ("code", "options", "batch_size")}
"""The parts of a cell that must be the same for all methods on a stream, and for all results of a row."""
SETTING = ("batch_size", "epochs", "input_size")
"""Columns that say how a row was made."""
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
FULL_NAMES = {"tiny-imagenet-c-2500": "tiny-imagenet-c"}
"""Data sets whose streams were cut short, by the name of the whole one; `images` tells the length."""


def packed_cells(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each run, with columns as "online/none/accuracy"."""
    named = [{**line, "cell": {**line["cell"], "data": full_name(line["cell"]["data"])}} for line in lines]
    latest = {place_of(line["cell"], (*CELL, "protocol", "tempering")): line for line in named}
    check_same([{**line["cell"], "images": line["images"]} for line in latest.values()], SAME)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in latest.values():
        cell = line["cell"]
        row = rows.setdefault(place_of(cell, CELL), {})
        row |= {name: cell[name] for name in (*CELL, *SETTING)} | {"images": line["images"]}
        row |= {name: line["made"][name] for name in ("device", "torch")}
        row |= {f"rehearsal_{name}": size for name, size in cell.get("rehearsal", {}).items()}
        row |= scores(line)
    return pd.DataFrame([rows[place] for place in sorted(rows, key=str)])


def place_of(cell: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Some parts of a cell."""
    return tuple(cell[name] for name in names)


def check_same(cells: Sequence[Mapping[str, Any]], same: Mapping[tuple[str, ...], tuple[str, ...]]) -> None:
    """Raise DataError where cells that share the parts of a key of `same` differ in one of its values."""
    for names, parts in same.items():
        first: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for cell in cells:
            place = place_of(cell, names)
            other = first.setdefault(place, cell)
            for part in parts:
                if (here := cell.get(part)) != (expected := other.get(part)):
                    raise DataError(
                        f"{', '.join(map(str, place))}: expected results with one {part}, got {expected!r} "
                        f"and {here!r} ({cell['label']}, {cell['tempering']}): run one of them again"
                    )


def scores(line: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a line by their columns, its best temperature's, and its estimate of accuracy."""
    protocol, tempering = line["cell"]["protocol"], line["cell"]["tempering"]
    confidence = sum(line["reliability"]["confidence"]) / line["images"]
    every = {**line["scores"], "confidence": confidence}
    kept = {name: every[name] for name in (*METRICS, *MORE_METRICS.get(tempering, ()))}
    parts = {tempering: kept, "oracle": line.get("oracle", {}), "estimate": line.get("estimate", {})}
    return {
        f"{protocol}/{part}/{name}": round(value, 5)
        for part, values in parts.items()
        for name, value in values.items()
    }


def packed_stream(line: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a stream, with a column for each quantile: "norm_0.5" and "tau_0.5" are the medians."""
    row = {name: line[name] for name in STREAM} | {"data": full_name(line["data"])}
    for name, values in (("norm", line["norms"]), ("tau", line["taus"])):
        row |= {f"{name}_{level}": value for level, value in zip(line["levels"], values, strict=True)}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()}


def full_name(data: str) -> str:
    """The name of the whole data set."""
    return FULL_NAMES.get(data, data)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines."""
    if not path.is_file():
        raise DataError(f"{path}: expected a file that `equipoise run` wrote, got none")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def added(news: pd.DataFrame, olds: pd.DataFrame) -> pd.DataFrame:
    """The new rows, and those of the old ones whose data set and network no new row has."""
    renewed = pd.MultiIndex.from_frame(news[["data", "backbone"]]).unique()
    stay = olds[~pd.MultiIndex.from_frame(olds[["data", "backbone"]]).isin(renewed)]
    order = [name for name in news.columns if name in (*MET, "label")]
    joined = pd.concat([stay, news], ignore_index=True)
    return joined.sort_values(order, na_position="first", kind="stable", ignore_index=True)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a CSV file whose whole numbers stay whole where some are missing."""
    if frame.empty:
        raise DataError(f"{path}: expected at least one result to write, got none")
    whole = frame.columns.intersection(["tier", "input_size", "rehearsal_images", "rehearsal_shifts"])
    with whole_file(path) as partial:
        frame.astype(dict.fromkeys(whole, "Int64")).to_csv(partial, index=False, encoding="utf-8")


def command_line(description: str | None, folder: Path) -> argparse.ArgumentParser:
    """The folders of runs to pack, and the folder of the packed files."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("outs", nargs="+", type=Path, metavar="OUT")
    parser.add_argument("--folder", type=Path, default=folder)
    return parser


def main() -> None:
    """Read the folders, write the two files."""
    parser = command_line(__doc__, HERE)
    parser.add_argument("--add", action="store_true", help="keep the rows of other data sets and networks")
    given = parser.parse_args()
    lines = [line for out in given.outs for line in read_lines(out / "results.jsonl")]
    summaries = [line for out in given.outs for line in read_lines(out / "streams.jsonl")]
    streams = {tuple(row[name] for name in MET): row for row in map(packed_stream, summaries)}
    cells = packed_cells([line for line in lines if line["status"] == "ok"])
    summarised = pd.DataFrame(sorted(streams.values(), key=str))
    for name, frame in (("cells.csv", cells), ("streams.csv", summarised)):
        path = given.folder / name
        write(added(frame, pd.read_csv(path)) if given.add else frame, path)


if __name__ == "__main__":
    main()
