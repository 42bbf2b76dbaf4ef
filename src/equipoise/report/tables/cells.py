"""The entries of a column: our means beside printed numbers, the best marked, gaps told."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from equipoise.report.numbers.paper import Printed
from equipoise.report.numbers.runs import Metric, Values
from equipoise.report.numbers.summary import BETTER, coverage, domain_mean, domain_std, gap
from equipoise.report.tables.table import Column, Row, Table, TableEntry, written
from equipoise.report.tables.wording import doubt_notes, gap_notes


class Expected(NamedTuple):
    """What a complete number is of: so many shifts, called "domain" or "shift", with these seeds each."""

    shifts: int
    seeds: Collection[int]
    noun: str = "domain"


def column_of(
    column: Column,
    metric: Metric,
    values: Sequence[Values],
    expected: Expected,
    printed: Sequence[Printed | None] = (),
    *,
    spread: bool = False,
) -> list[TableEntry]:
    """The entries of one column, a row for each of `values`; `spread` adds the deviation over domains.

    The best is the best as written, so ties are all best. Only numbers of the same shifts and seeds compete:
    those that most rows have.
    """
    means = [domain_mean(each) for each in values]
    runs = [coverage(each) for each in values]
    times = Counter(each for each in runs if each)
    usual = max(times, key=lambda each: (times[each], len(each)), default=None)
    competing = [mean for mean, each in zip(means, runs, strict=True) if each == usual and mean is not None]
    best = None
    if BETTER[metric] and len(competing) > 1:
        best = written((max if BETTER[metric] > 0 else min)(competing), column)
    entries = []
    for position, (mean, each) in enumerate(zip(means, values, strict=True)):
        entry = TableEntry(
            ours=mean,
            ours_std=domain_std(each) if spread else None,
            best=mean is not None and runs[position] == usual and written(mean, column) == best,
            missing=gap(each, expected.shifts, expected.seeds, expected.noun),
        )
        entries.append(beside(entry, printed[position] if printed else None))
    return entries


def beside(entry: TableEntry, printed: Printed | None) -> TableEntry:
    """The entry with the number that the paper prints there."""
    if printed is None:
        return entry
    return replace(
        entry,
        printed=printed.value,
        printed_std=printed.std,
        printed_best=printed.bold,
        suspicious=printed.suspicious,
    )


def rows_of(labels: Sequence[str], columns: Sequence[Sequence[TableEntry]]) -> tuple[Row, ...]:
    """Rows from the entries of columns."""
    return tuple(
        Row(label, tuple(column[position] for column in columns)) for position, label in enumerate(labels)
    )


def with_notes(table: Table, after: Sequence[str] = ()) -> Table:
    """The table with what its own entries need said, and then `after`."""
    return replace(table, notes=(*table.notes, *gap_notes(table), *doubt_notes(table), *after))
