"""A table of the report: one frame of entries, which pandas writes as HTML, LaTeX, Markdown and CSV."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from equipoise.files import whole_file
from equipoise.research.report.part import PlaceScores, Spread
from equipoise.research.report.results import BETTER, OVER_TIME, Results
from equipoise.research.report.style import template_text

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
    there = [each for each in summaries if each is not None]
    times = Counter(each.coverage for each in there)
    usual = max(times, key=lambda each: (times[each], len(each)), default=None)
    entries = [
        Entry(each.mean[metric], known(each.std[spread][metric]), spec, missing=gap)
        if each
        else Entry(spec=spec, missing=gap)
        for each, gap in zip(summaries, missing, strict=True)
    ]
    competing = [each.mean[metric] for each in there if each.coverage == usual]
    if not BETTER[metric] or len(competing) < 2:
        return entries
    best = entries[0].written(max(competing, key=lambda value: BETTER[metric] * value))
    wins = [s and s.coverage == usual and entries[0].written(s.mean[metric]) == best for s in summaries]
    return [replace(entry, best=bool(win)) for entry, win in zip(entries, wins, strict=True)]


def file_key(text: str) -> str:
    """A text as the name of a file, at most 109 characters, different for different texts."""
    key = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")
    digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return key if len(key) <= 100 else f"{key[:100]}-{digest}"


def known(value: float) -> float | None:
    """None for NaN, pandas' sign of a missing number."""
    return None if math.isnan(value) else float(value)


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def shortened(text: str, most: int) -> str:
    """A text of at most so many signs, the last of them "…" where something is cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}", "<": "$<$", ">": "$>$", "|": r"\textbar{}",
    '"': "{''}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "†": r"$^\dagger$", "‡": r"$^\ddagger$",
    "±": r"$\pm$",
    "²": r"\textsuperscript{2}", "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$", "\N{MINUS SIGN}": "$-$",
    "\N{GREEK SMALL LETTER TAU}": r"$\tau$", "\N{EN DASH}": "--", "σ²_max": r"$\sigma^2_{\max}$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Text that LaTeX shows as it is; a sign that its standard fonts lack becomes "?"."""

    def sign(found: re.Match[str]) -> str:
        if found[2]:  # 1.1e-07
            return rf"${found[2]}\times10^{{{int(found[3])}}}$"
        return _LATEX.get(found[0], found[0] if found[0] <= "ÿ" else "?")

    minus = re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)
    return re.sub(r"(\b(\d[\d.]*)e([+-]\d+))|σ²_max|.", sign, minus, flags=re.DOTALL)


def markdown_text(text: str) -> str:
    """Text without any sign that Markdown or HTML reads, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split()))


class Markup(NamedTuple):
    """A format: how it shows plain text, and the parts of a cell with a place for the number."""

    text: Callable[[str], str]
    best: str
    alike: str
    bold: str
    std: str
    printed: str
    nothing: str


HTML = Markup(
    escape, '<b class="best">{}</b>', '<span class="alike">{}</span>', "<b>{}</b>", "<small> ±{}</small>",
    ' <span class="printed">({})</span>', "&ndash;",
)  # fmt: skip
LATEX = Markup(
    latex_text,
    r"\textbf{{{}}}",
    r"\underline{{{}}}",
    r"\textbf{{{}}}",
    r"{{\scriptsize$\pm${}}}",
    " ({})",
    "--",
)
MARKDOWN = Markup(markdown_text, "**{}**", "*{}*", "**{}**", " ± {}", " ({})", "\N{EN DASH}")


def html_frame(frame: pd.DataFrame, label: str, common_gap: str = "") -> str:
    """A frame of entries, numbers or texts as an HTML table in a box that scrolls; `label` names the box."""
    table = _shown(frame, HTML, common_gap).to_html(escape=False, border=0, index_names=False, classes="")
    table = re.sub(
        r' (style="text-align: right;"|class="dataframe ?"|border="0"|halign="left"|valign="top")', "", table
    )
    return f'<div class="table" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def html_table(table: Table) -> str:
    """A table with its title above and its notes below."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    body = html_frame(table.frame, table.title, table.common_gap)
    caption = f"<figcaption><b>{escape(table.title)}</b></figcaption>"
    return f'<figure class="tabled">{caption}{body}<ul class="note">{notes}</ul></figure>\n'


def markdown_table(table: Table) -> str:
    """A table with its notes."""
    shown = _shown(table.frame, MARKDOWN, table.common_gap)
    heads = [" ".join(filter(None, head)) if isinstance(head, tuple) else str(head) for head in shown.columns]
    align = ["left", *["right"] * len(heads)]
    text = shown.set_axis(heads, axis=1).to_markdown(disable_numparse=True, colalign=align)
    notes = [f"- {markdown_text(note)}" for note in (table.setting, *table.notes) if note]
    return "\n".join([text, "", *notes])


def latex_table(table: Table) -> str:
    """A table environment that needs the packages booktabs and graphicx."""
    shown = _shown(table.frame, LATEX, table.common_gap)
    columns = "l" + "r" * len(shown.columns)
    tabular = shown.to_latex(escape=False, multicolumn_format="c", column_format=columns, index_names=False)
    label = re.sub(r"[^A-Za-z0-9.-]", "-", table.key)
    notes = "".join(f"{latex_text(note)}\\par\n" for note in (table.setting, *table.notes) if note)
    return template_text("table.tex") % (latex_text(table.title), label, tabular, notes)


def write_latex(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write a file for each table and `main.tex`, a document with them all."""
    paths = [write_text(folder / f"{table.key}.tex", latex_table(table)) for table in tables]
    # More tables than LaTeX holds back at once would be "too many unprocessed floats".
    inputs = [
        f"\\input{{{path.stem}}}\n" + ("" if at % 8 else "\\clearpage\n") for at, path in enumerate(paths, 1)
    ]
    return [*paths, write_text(folder / "main.tex", template_text("main.tex") % "".join(inputs))]


def write_csv(results: Results, tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write results.csv, a row for each result, and tables.csv, a row for each cell of each table."""
    names = ("value", "std", "printed", "printed_std", "missing", "doubt", "best", "alike")
    cells = [
        {"table": table.key, "row": row, "metric": metric.rstrip(" ↑↓"), "column": column}
        | {name: getattr(entry, name) for name in names}
        for table in tables
        for row, (metric, column), entry in table.entries
    ]
    plain = results.frame.drop(columns=["reliability", *OVER_TIME])
    frames = {"results.csv": plain, "tables.csv": pd.DataFrame(cells)}
    return [write_text(folder / name, frame.to_csv(index=False)) for name, frame in frames.items()]


def write_text(path: Path, text: str) -> Path:
    """Write a file that is whole or not there."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _shown(frame: pd.DataFrame, markup: Markup, common_gap: str) -> pd.DataFrame:
    """The frame as texts; columns of two levels have one where the second is empty everywhere."""
    shown = frame.map(lambda value: _cell(value, markup, common_gap))
    shown.index = pd.Index([markup.text(str(row)) for row in frame.index])
    levels = [head if isinstance(head, tuple) else (head,) for head in frame]
    heads = [tuple(markup.text(str(level)) for level in head) for head in levels]
    alone = not any(any(head[1:]) for head in heads)
    shown.columns = pd.Index([head[0] for head in heads]) if alone else pd.MultiIndex.from_tuples(heads)
    return shown


def _cell(value: object, markup: Markup, common_gap: str) -> str:
    """Ours, with the printed number in brackets: "**0.061** ± 0.010 (0.059†)"."""
    entry = Entry(None if pd.isna(value) else value) if isinstance(value, float) else value
    if not isinstance(entry, Entry):
        return markup.text(str(entry))

    def number(value: float, std: float | None, strong: str) -> str:
        told = strong.format(markup.text(entry.written(value)))
        return told if std is None else told + markup.std.format(markup.text(entry.written(std)))

    ours = markup.nothing
    if entry.value is not None:
        mark = markup.best if entry.best else markup.alike if entry.alike else "{}"
        ours = number(entry.value, entry.std, mark)
        ours += markup.text(INCOMPLETE) if entry.missing and entry.missing != common_gap else ""
    if entry.printed is None:
        return ours
    printed = number(entry.printed, entry.printed_std, markup.bold if entry.bold else "{}")
    return ours + markup.printed.format(printed + (markup.text(DOUBTFUL) if entry.doubt else ""))
