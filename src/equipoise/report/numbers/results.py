"""What a run has written, read back: the results that count, and what does not count with the reason."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from equipoise.bench.schema import Cell, CellResult, Protocol, StreamSummary
from equipoise.errors import DataError
from equipoise.report.numbers.runs import VariantScores, scores_by_variant
from equipoise.report.numbers.shape import checker

PROTOCOLS: tuple[Protocol, ...] = ("online", "after-pass")
BINS = 15
"""How many bins a result's reliability has."""


class Setting(NamedTuple):
    """The setting that all results of one table share: data, limit, training, input size and order.

    `origin` is that of the streams' images: "official", the published files, or "made" here.
    """

    data: str
    limit: int | None
    epochs: int
    input_size: int | None
    order: str
    origin: str = "official"


class TableScope(NamedTuple):
    """The subject of one table: a setting, a network and a protocol."""

    setting: Setting
    backbone: str
    protocol: Protocol


@dataclass(frozen=True)
class RunResults:
    """Everything that a folder of results holds.

    Attributes:
        lines: the results that count, in the order of the file.
        failures: the cells that failed and were not done well since, nor with a newer model or stream.
        streams: what the source models make of the streams.
        damaged: how many lines could not be read: cut off when a run was killed, or not of the shape.
        superseded: how many results are of a model or a stream that another one has taken the place of.
    """

    lines: tuple[CellResult, ...]
    failures: tuple[CellResult, ...] = ()
    streams: tuple[StreamSummary, ...] = ()
    damaged: int = 0
    superseded: int = 0

    @cached_property
    def variant_scores(self) -> dict[TableScope, VariantScores]:
        """The scores of each table by method variant, sorted once for all tables."""
        return {scope: scores_by_variant(lines) for scope, lines in self.lines_by_scope().items()}

    def lines_by_scope(self) -> dict[TableScope, tuple[CellResult, ...]]:
        """The results of each table, ordered by data set, setting, network and protocol."""
        found: dict[TableScope, list[CellResult]] = {}
        for line in self.lines:
            found.setdefault(scope_of(line["cell"]), []).append(line)
        return {scope: tuple(found[scope]) for scope in sorted(found, key=_scope_order)}

    def settings(self) -> list[Setting]:
        """The settings that there are results for."""
        return list(dict.fromkeys(scope.setting for scope in self.variant_scores))

    def protocols(self) -> list[Protocol]:
        """The protocols that there are results for."""
        there = {line["cell"]["protocol"] for line in self.lines}
        return [protocol for protocol in PROTOCOLS if protocol in there]


def read_results(folder: Path) -> RunResults:
    """Read `results.jsonl` and, where it is there, `streams.jsonl`; DataError where there are no results.

    Of several lines with the same key the last one counts, so a cell that failed and was done again is no
    failure. Where a shift has results of several models (its training or its images have changed since),
    those of the last one count: a table never mixes them.
    """
    path = folder / "results.jsonl"
    if not path.is_file():
        what = "has no results.jsonl" if folder.is_dir() else "is not a folder"
        raise DataError(f"{folder}: expected the folder of a run, with results.jsonl in it; this {what}")
    lines, damaged = _read(path, _is_line)
    if not lines:
        raise DataError(
            f"{path}: expected a result a line, as JSON; found none ({damaged} lines cannot be read)"
        )
    streams: list[Any] = []
    damaged_streams = 0
    if (folder / "streams.jsonl").is_file():
        streams, damaged_streams = _read(folder / "streams.jsonl", _is_stream)
    latest = cast("list[CellResult]", lines)
    good = [line for line in latest if line["status"] == "ok"]
    current = {_place(line["cell"]): _made_from(line["cell"]) for line in good}
    counted = [line for line in good if current[_place(line["cell"])] == _made_from(line["cell"])]
    return RunResults(
        lines=tuple(counted),
        failures=tuple(_failures(latest)),
        streams=tuple(cast("list[StreamSummary]", streams)),
        damaged=damaged + damaged_streams,
        superseded=len(good) - len(counted),
    )


def setting_of(source: Cell | StreamSummary) -> Setting:
    """The setting that a cell or a stream belongs to."""
    return Setting(
        source["data"],
        source["limit"],
        source["epochs"],
        source["input_size"],
        source["order"],
        source["origin"],
    )


def scope_of(cell: Cell) -> TableScope:
    """The scope of the table that a cell belongs to."""
    return TableScope(setting_of(cell), cell["backbone"], cell["protocol"])


def seeds_of(lines: Iterable[CellResult]) -> list[int]:
    """The seeds that there are results of."""
    return sorted({line["cell"]["seed"] for line in lines})


def _failures(lines: list[CellResult]) -> Iterator[CellResult]:
    """The cells that failed, but for those whose place was done well later with another model or stream."""
    last = {_place(line["cell"]): at for at, line in enumerate(lines) if line["status"] == "ok"}
    for at, line in enumerate(lines):
        if line["status"] == "failed":
            later = last.get(_place(line["cell"]), -1)
            if later < at or _made_from(lines[later]["cell"]) == _made_from(line["cell"]):
                yield line


def _read(path: Path, good: Callable[[object], bool]) -> tuple[list[Any], int]:
    """The good values of a file, of each key the last, in the file's order; and how many are not good."""
    latest: dict[str, Any] = {}
    damaged = 0
    for value in _values(path):
        if good(value):
            latest.pop(value["key"], None)  # so that what is written again counts as written last
            latest[value["key"]] = value
        else:
            damaged += 1
    return list(latest.values()), damaged


def _values(path: Path) -> Iterator[Any]:
    """The value of every line that is not empty; None for what is no JSON."""
    with path.open("rb") as file:
        for text in file:
            if text.strip():
                try:
                    yield _loaded(text)
                except (ValueError, RecursionError):  # also what is no UTF-8, or nested without end
                    yield None


def _loaded(text: bytes) -> Any:
    """The value of a line; half a character (a lone surrogate), which no file can hold, becomes "?"."""
    value = json.loads(text, parse_constant=_no_number)
    if b"\\ud" not in text.lower():
        return value
    whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return json.loads(whole, parse_constant=_no_number)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON, and no score")


def _is_line(value: object) -> bool:
    if not checker(CellResult)(value):
        return False
    line = cast("CellResult", value)
    bins = line["reliability"]
    if bins is not None and (
        any(len(each) != BINS for each in (bins["count"], bins["confidence"], bins["correct"]))
        or min(bins["count"]) < 0
    ):
        return False
    return line["status"] == ("failed" if line["scores"] is None else "ok")


def _is_stream(value: object) -> bool:
    if not checker(StreamSummary)(value):
        return False
    line = cast("StreamSummary", value)
    ascending = all(
        low < high for several in (line["levels"], line["tau_edges"]) for low, high in pairwise(several)
    )
    return ascending and all(count >= 0 for count in line["tau_counts"])


def _place(cell: Cell) -> tuple[object, ...]:
    """Where a model meets a stream; there is one of each, however many methods adapt."""
    return setting_of(cell), cell["backbone"], cell["target"], cell["tier"], cell["seed"]


def _made_from(cell: Cell) -> tuple[str, str]:
    """The model and the stream of a cell."""
    return cell["model"], cell["stream"]


def _scope_order(scope: TableScope) -> tuple[object, ...]:
    """Whole data sets before trials, so that the numbers to compare come first."""
    data, limit, epochs, size, order, origin = scope.setting
    return (
        data,
        limit is not None,
        -(limit or 0),
        -epochs,
        size or 0,
        order != "shuffled",
        order,
        origin != "official",
        scope.backbone,
        PROTOCOLS.index(scope.protocol),
    )
