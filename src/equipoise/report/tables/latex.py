"""The tables as LaTeX: a file for each, to put into any document, and one document with them all."""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from equipoise.files import whole_file
from equipoise.report.numbers.results import RunResults
from equipoise.report.tables.papers import all_tables
from equipoise.report.tables.table import Column, Table, TableEntry, common_gap, written
from equipoise.report.tables.wording import DOUBTFUL, INCOMPLETE

DOCUMENT = "all.tex"
_FITTING = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
"""Shrinks a table that is wider than the text, and only such a one."""
_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\~{}",
    "^": r"\^{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "±": r"$\pm$",
    "²": r"\textsuperscript{2}",
    "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$",
    "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "\N{EN DASH}": "--",
    "\N{MINUS SIGN}": "$-$",
    "σ²_max": r"$\sigma^2_{\max}$",
}


def write_latex(results: RunResults, folder: Path) -> list[Path]:
    """Write a file for each table and `all.tex`, a document with them all; files are whole or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    written_files = []
    for table in all_tables(results):
        path = folder / f"{table.key}.tex"
        _write(path, latex(table))
        written_files.append(path)
    _write(folder / DOCUMENT, document(written_files))
    return [*written_files, folder / DOCUMENT]


def latex(table: Table) -> str:
    """A table environment that needs the packages booktabs and graphicx."""
    notes = [f"Protocol: {table.protocol}.", *table.notes]
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}[htbp]",
        r"\centering",
        r"\small",
        f"\\caption{{{escaped(table.title)}}}",
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', table.key)}}}",
        _FITTING,
        *_tabular(table),
        "}",
        r"\par\smallskip",
        r"\parbox{\textwidth}{\footnotesize",
        *(f"{escaped(note)}\\par" for note in notes),
        "}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def document(files: Sequence[Path]) -> str:
    """A document that has every one of the files beside it."""
    lines = [
        r"\documentclass{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage{textcomp}",
        r"\usepackage[a4paper,margin=2cm]{geometry}",
        r"\usepackage{booktabs}",
        r"\usepackage{graphicx}",
        r"\begin{document}",
        # More tables than LaTeX holds back at once would be "too many unprocessed floats".
        *(f"\\input{{{path.stem}}}\n\\clearpage" for path in files),
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX shows as it is."""
    minus = re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)
    return re.sub("σ²_max|.", lambda found: _SIGNS.get(found[0], found[0]), minus, flags=re.DOTALL)


def _tabular(table: Table) -> list[str]:
    everywhere = common_gap(table)
    lines = [
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        *_head(table.columns),
        r"\midrule",
    ]
    for row in table.rows:
        cells = (
            _cell(entry, column, everywhere) for entry, column in zip(row.entries, table.columns, strict=True)
        )
        lines.append(" & ".join((escaped(row.label), *cells)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _head(columns: Sequence[Column]) -> list[str]:
    """One line of headings, or two where columns share a metric."""
    if not any(column.heading for column in columns):
        return [_line(["", *(escaped(column.metric) for column in columns)])]
    upper, rules, start = [""], [], 2
    for metric, group in groupby(column.metric for column in columns):
        width = len(list(group))
        upper.append(f"\\multicolumn{{{width}}}{{c}}{{{escaped(metric)}}}")
        rules.append(f"\\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_line(upper), " ".join(rules), _line(["", *(escaped(column.heading) for column in columns)])]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(entry: TableEntry, column: Column, everywhere: str) -> str:
    ours = "--"
    if entry.ours is not None:
        ours = _number(entry.ours, entry.ours_std, column, bold=entry.best)
        if entry.missing and entry.missing != everywhere:
            ours += _SIGNS[INCOMPLETE]
    if entry.printed is None:
        return ours
    printed = _number(entry.printed, entry.printed_std, column, bold=entry.printed_best)
    return f"{ours} ({printed}{_SIGNS[DOUBTFUL] if entry.suspicious else ''})"


def _number(value: float, std: float | None, column: Column, *, bold: bool) -> str:
    number = _sized(written(value, column))
    number = f"\\textbf{{{number}}}" if bold else number
    return number if std is None else f"{number}\\textsubscript{{{_sized(written(std, column))}}}"


def _sized(number: str) -> str:
    """A number as it is; with a sign or a power of ten in mathematics."""
    mantissa, _, exponent = number.partition("e")
    if exponent:
        return f"${mantissa}\\times10^{{{int(exponent)}}}$"
    return f"${number}$" if number.startswith("-") else number


def _write(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
