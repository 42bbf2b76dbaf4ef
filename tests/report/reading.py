"""Tables and scores picked out by hand, for tests of what is made from results."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.report.numbers.results import RunResults, read_results
from equipoise.report.tables.table import Table, TableEntry
from tests.report.writer import folder

HOME = ["Art", "Clipart", "Product", "Real World"]
ORDER = ["No Adapt", "DEC", "T3A", "ETA", "TENT", "SoTTA"]


def read(path: Path, lines: Iterable[dict[str, Any]]) -> RunResults:
    return read_results(folder(path, lines))


def one(tables: list[Table], key: str) -> Table:
    (found,) = [table for table in tables if table.key == key]
    return found


def row(table: Table, label: str) -> tuple[TableEntry, ...]:
    (found,) = [each for each in table.rows if each.label == label]
    return found.entries


def scores(lines: list[dict[str, Any]], metric: str, **which: Any) -> list[float]:
    """The scores of the lines with these cells, by hand."""
    return [
        each["scores"][metric]
        for each in lines
        if all(each["cell"][name] == value for name, value in which.items())
    ]
