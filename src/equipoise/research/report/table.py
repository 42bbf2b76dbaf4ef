"""A table of the report: one frame of entries, before it is HTML, LaTeX, Markdown or CSV."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import pandas as pd

from equipoise.research.report.part import PlaceScores, Spread
from equipoise.research.report.results import BETTER

DOUBTFUL, INCOMPLETE = "†", "‡"
"""The marks of a doubtful printed number, and of a number of ours that is not of everything."""
LEAST_P = 1e-15
"""A smaller p is only said to be smaller: its digits are those of rounding."""


@dataclass(frozen=True)
class Entry:
    """A number of ours (None where there is no result) beside the one that the paper prints.

    `best` marks the best as written, `alike` one that a test cannot tell from it, `bold` the paper's bold;
    `doubt` says why the printed is doubtful, `missing` the part that is missing of a complete number ("1 of 3
    seeds").
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
    alike: bool = False

    def written(self, number: float) -> str:
        """A number in the entry's format; no zero has a sign, and a tiny p is only said to be so."""
        if self.spec == "p":
            return f"<{LEAST_P:g}" if number < LEAST_P else f"{number:.3g}"
        if self.spec.endswith("f"):
            number = round(number, int(self.spec.partition(".")[2][:-1])) + 0.0  # adding 0.0 makes -0.0 plain
        return format(number, self.spec)


Columns = Mapping[tuple[str, str], Sequence[Entry | str]]
"""The cells of each column; a heading has two levels, of which the second may be empty."""


class Table:
    """One table: a `title`, a `key` made of it that names files, a `frame` of entries or texts, and `notes`.

    Notes about gaps and doubtful cells follow the given ones; `setting` is a note that a page says only once.
    """

    def __init__(
        self, title: str, columns: Columns, rows: Sequence[str], notes: Iterable[str] = (), setting: str = ""
    ) -> None:
        self.title, self.key, self.setting = title, file_key(title), setting
        self.frame = pd.DataFrame(list(columns.values()), columns=list(rows), dtype=object).T
        self.frame.columns = pd.MultiIndex.from_tuples(list(columns))
        self.entries = [
            (row, heading, cell)
            for heading, cells in columns.items()
            for row, cell in zip(rows, cells, strict=True)
            if isinstance(cell, Entry)
        ]
        gaps = {entry.missing for _, _, entry in self.entries if entry.value is not None}
        self.common_gap = gaps.pop() if len(gaps) == 1 else ""
        """The part that is missing behind every number of ours alike, said once and not marked."""
        self.notes = (*notes, *self._gap_notes(), *self._doubt_notes())

    def _gap_notes(self) -> list[str]:
        if self.common_gap:
            return [f"Every number of ours has only {self.common_gap}."]
        rows: dict[str, dict[str, None]] = {}
        for row, _, entry in self.entries:
            if entry.missing and entry.value is not None:
                rows.setdefault(entry.missing, {})[row] = None
        return [f"{INCOMPLETE} Only {missing}: {listed(labels)}." for missing, labels in rows.items()]

    def _doubt_notes(self) -> list[str]:
        cells: dict[str, list[str]] = {}
        for row, (metric, heading), entry in self.entries:
            if entry.doubt:
                name = f"{metric.rstrip(' ↑↓')} of {row}" + (f" ({heading})" if heading else "")
                cells.setdefault(entry.doubt, []).append(name)
        return [f"{DOUBTFUL} {listed(names)}: {reason}." for reason, names in cells.items()]


def compete(
    summaries: Sequence[PlaceScores | None],
    metric: str,
    missing: Sequence[str],
    spread: Spread,
    spec: str = ".3f",
) -> list[Entry]:
    """Entries of which the best by a metric is marked; `missing` says for each what it lacks.

    The best is the best as written, so ties are all best. Only numbers of the same shifts and seeds compete:
    those that most entries have.
    """
    times = Counter(each.coverage for each in summaries if each is not None)
    usual = max(times, key=lambda each: (times[each], len(each)), default=None)
    entries, competing = [], []
    for each, gap in zip(summaries, missing, strict=True):
        if each is None:
            entries.append(Entry(spec=spec, missing=gap))
            continue
        entries.append(Entry(each.mean[metric], known(each.std[spread][metric]), spec, missing=gap))
        if each.coverage == usual:
            competing.append(each.mean[metric])
    if not BETTER[metric] or len(competing) < 2:
        return entries
    best = entries[0].written(max(competing, key=lambda value: BETTER[metric] * value))
    alike = [each is not None and each.coverage == usual for each in summaries]
    return [
        replace(entry, best=same and entry.value is not None and entry.written(entry.value) == best)
        for entry, same in zip(entries, alike, strict=True)
    ]


def file_key(text: str) -> str:
    """A text as the name of a file, at most 109 characters, different for different texts."""
    key = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")
    return (
        key if len(key) <= 100 else f"{key[:100]}-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


def known(value: float) -> float | None:
    """None for NaN, pandas' sign of a missing number."""
    return None if math.isnan(value) else float(value)


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
