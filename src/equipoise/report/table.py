"""A table of the report: one frame of entries, before it is HTML, LaTeX, Markdown or CSV."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from equipoise.report.results import BETTER
from equipoise.report.summary import Coverage, Spread, Summary

DOUBTFUL, INCOMPLETE = "†", "‡"
"""The marks of a doubtful printed number, and of a number of ours that is not of everything."""
LEAST_P = 1e-15
"""A smaller p is only said to be smaller: its digits are those of rounding."""


@dataclass(frozen=True)
class Entry:
    """A number of ours beside the one that the paper prints.

    Attributes:
        value: ours; None where there is no result.
        std: its standard deviation.
        spec: the format of the numbers.
        best: whether ours is the best of those that it competes with (as written, so ties are all best).
        printed: the paper's number.
        printed_std: the paper's standard deviation.
        bold: whether the paper prints it in bold.
        doubt: why the printed number is doubtful.
        missing: the part that is missing of a complete number ("1 of 3 seeds", "2 of 4 domains").
    """

    value: float | None = None
    std: float | None = None
    spec: str = ".3f"
    best: bool = False
    printed: float | None = None
    printed_std: float | None = None
    bold: bool = False
    doubt: str = ""
    missing: str = ""

    def written(self, number: float) -> str:
        """A number in the entry's format; no zero has a sign, and a tiny p is only said to be so."""
        if self.spec == "p":
            return f"<{LEAST_P:g}" if number < LEAST_P else f"{number:.3g}"
        if self.spec.endswith("f"):
            number = round(number, int(self.spec.partition(".")[2][:-1])) + 0.0  # adding 0.0 makes -0.0 plain
        return format(number, self.spec)


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        key: a stable name, for file names and links ("pacs-efficientnet_b0-ece-online").
        title: the caption: data, network, protocol, and the subject.
        frame: an `Entry` or a text in each cell; columns have two levels, the second may be empty.
        notes: sentences below it.
        group: the part of the report that it belongs to: "paper", "averages", "tests", "details" or "runs".
    """

    key: str
    title: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = field(default=())
    group: str = "averages"

    @property
    def entries(self) -> list[tuple[str, tuple[str, str], Entry]]:
        """Every entry with its row and its column."""
        return [
            (str(row), (str(column[0]), str(column[1])), value)
            for column, values in self.frame.items()
            for row, value in values.items()
            if isinstance(column, tuple) and isinstance(value, Entry)
        ]

    @property
    def common_gap(self) -> str:
        """The part that is missing behind every number of ours alike, said once and not marked; else empty."""
        gaps = {entry.missing for _, _, entry in self.entries if entry.value is not None}
        return gaps.pop() if len(gaps) == 1 else ""


def table_of(
    key: str,
    title: str,
    columns: Mapping[tuple[str, str], Sequence[Entry | str]],
    rows: Sequence[str],
    notes: Iterable[str],
    group: str = "averages",
) -> Table:
    """A table of columns, with notes about its gaps and doubtful cells after the given ones."""
    frame = pd.DataFrame(dict(columns), index=list(rows), dtype=object)
    frame.columns = pd.MultiIndex.from_tuples(list(columns))
    bare = Table(key, title, frame, (), group)
    return Table(key, title, frame, (*notes, *_gap_notes(bare), *_doubt_notes(bare)), group)


def number_or_none(value: float) -> float | None:
    """None for NaN, pandas' sign of a missing number."""
    return None if math.isnan(value) else float(value)


def compete(
    summaries: Sequence[Summary | None], metric: str, missing: Sequence[str], spread: Spread | None, spec: str
) -> list[Entry]:
    """Entries of which the best by a metric is marked.

    The best is the best as written, so ties are all best. Only numbers of the same shifts and seeds compete:
    those that most entries have.
    """
    times = Counter(each.coverage for each in summaries if each is not None)
    usual: Coverage | None = max(times, key=lambda each: (times[each], len(each)), default=None)
    entries = [
        Entry(missing=gap, spec=spec)
        if each is None
        else Entry(
            value=each.mean[metric],
            std=number_or_none(each.std[spread][metric]) if spread else None,
            missing=gap,
            spec=spec,
        )
        for each, gap in zip(summaries, missing, strict=True)
    ]
    alike = [each is not None and each.coverage == usual for each in summaries]
    competing = [entry.value for entry, same in zip(entries, alike, strict=True) if same and entry.value is not None]
    if not BETTER[metric] or len(competing) < 2:
        return entries
    best = entries[0].written((max if BETTER[metric] > 0 else min)(competing))
    return [
        Entry(entry.value, entry.std, spec, best=same and entry.written(entry.value or 0.0) == best, missing=entry.missing)
        for entry, same in zip(entries, alike, strict=True)
    ]


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _gap_notes(table: Table) -> list[str]:
    if everywhere := table.common_gap:
        return [f"Every number of ours has only {everywhere}."]
    rows: dict[str, dict[str, None]] = {}
    for row, _, entry in table.entries:
        if entry.missing and entry.value is not None:
            rows.setdefault(entry.missing, {})[row] = None
    return [f"{INCOMPLETE} Only {missing}: {listed(labels)}." for missing, labels in rows.items()]


def _doubt_notes(table: Table) -> list[str]:
    """The reasons for doubt, each once with the cells that it is about."""
    cells: dict[str, dict[str, None]] = {}
    for row, (metric, heading), entry in table.entries:
        if entry.doubt:
            name = f"{metric.rstrip(' ↑↓')} of {row}" + (f" ({heading})" if heading else "")
            cells.setdefault(entry.doubt, {})[name] = None
    return [f"{DOUBTFUL} {listed(names)}: {reason}." for reason, names in cells.items()]
