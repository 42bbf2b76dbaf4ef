"""One table as HTML, LaTeX, Markdown and CSV, each written by pandas from the same frame."""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from equipoise.files import whole_file
from equipoise.report.results import Results
from equipoise.report.table import DOUBTFUL, INCOMPLETE, Entry, Table

DOCUMENT = "main.tex"
_LATEX_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\~{}",
    "^": r"\^{}",
    "<": "$<$",
    ">": "$>$",
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


class Markup(NamedTuple):
    """The parts of a cell in one format: texts with a place for the number."""

    text: Callable[[str], str]
    best: str
    bold: str
    std: str
    printed: str
    mark: str
    nothing: str


def latex_text(text: str) -> str:
    """Text that LaTeX shows as it is; a sign that its standard fonts lack becomes "?"."""
    minus = re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)
    powers = re.split(r"(\d[\d.]*e[+-]?\d+)", minus)  # 1.1e-07
    return "".join(
        re.sub(r"(.*)e(.*)", lambda found: rf"${found[1]}\times10^{{{int(found[2])}}}$", piece)
        if at % 2
        else re.sub("σ²_max|.", lambda found: _latex_sign(found[0]), piece, flags=re.DOTALL)
        for at, piece in enumerate(powers)
    )


def markdown_text(text: str) -> str:
    """Text without any sign that Markdown or HTML reads, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split()))


HTML = Markup(
    escape, '<span class="best">{}</span>', "<b>{}</b>", "<small> ±{}</small>", ' <span class="printed">({})</span>',
    "<sup>{}</sup>", "&ndash;",
)  # fmt: skip
LATEX = Markup(latex_text, r"\textbf{{{}}}", r"\textbf{{{}}}", r"{{\scriptsize$\pm${}}}", " ({})", "{}", "--")
MARKDOWN = Markup(markdown_text, "**{}**", "**{}**", " ± {}", " ({})", "{}", "\N{EN DASH}")


def html_frame(frame: pd.DataFrame, label: str, common_gap: str = "") -> str:
    """A frame of entries, numbers or texts as an HTML table in a box that scrolls; `label` names the box."""
    shown = _shown(frame, HTML, common_gap)
    table = shown.to_html(escape=False, border=0, index_names=False)
    table = re.sub(r' style="text-align: right;"| class="dataframe"| border="0"| halign="left"', "", table)
    table = re.sub(r"(?<=<thead>)(.*?)(?=</thead>)", lambda head: head[0].replace("<th>", '<th scope="col">'), table, flags=re.DOTALL)  # fmt: skip
    return f'<div class="table" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def html_table(table: Table) -> str:
    """A table with its title above and its notes below."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<figure class="tabled"><figcaption><b>{escape(table.title)}</b></figcaption>'
        f"{html_frame(table.frame, table.title, table.common_gap)}"
        f'<ul class="note">{notes}</ul></figure>\n'
    )


def markdown_table(table: Table) -> str:
    """A table with its notes."""
    shown = _shown(table.frame, MARKDOWN, table.common_gap)
    if isinstance(shown.columns, pd.MultiIndex):
        shown.columns = pd.Index([" ".join(filter(None, column)) for column in shown.columns])
    text = shown.to_markdown(disable_numparse=True, colalign=["left", *["right"] * len(shown.columns)])
    return f"{text}\n\n" + "\n".join(f"- {markdown_text(note)}" for note in table.notes)


def latex_table(table: Table) -> str:
    """A table environment that needs the packages booktabs and graphicx; a wide table shrinks to the text."""
    shown = _shown(table.frame, LATEX, table.common_gap)
    tabular = shown.to_latex(
        escape=False, multicolumn_format="c", column_format="l" + "r" * len(shown.columns), index_names=False
    )
    notes = "".join(f"{latex_text(note)}\\par\n" for note in table.notes)
    return (
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}\n\\begin{table}[htbp]\n\\centering\\small\n"
        f"\\caption{{{latex_text(table.title)}}}\n"
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', table.key)}}}\n"
        "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
        f"{tabular.strip()}\n}}\n\\par\\smallskip\n\\parbox{{\\textwidth}}{{\\scriptsize\n{notes}}}\n\\end{{table}}\n"
    )


def write_latex(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write a file for each table and `main.tex`, a document with them all; files are whole or not there."""
    paths = [folder / f"{table.key}.tex" for table in tables]
    for path, table in zip(paths, tables, strict=True):
        write_text(path, latex_table(table))
    # More tables than LaTeX holds back at once would be "too many unprocessed floats".
    inputs = "".join(f"\\input{{{path.stem}}}\n{'' if at % 8 else chr(92) + 'clearpage'}\n" for at, path in enumerate(paths, 1))  # fmt: skip
    write_text(
        folder / DOCUMENT,
        "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\usepackage[utf8]{inputenc}\n\\usepackage{textcomp}\n"
        "\\usepackage[a4paper,margin=2cm]{geometry}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n"
        f"\\begin{{document}}\n{inputs}\\end{{document}}\n",
    )
    return [*paths, folder / DOCUMENT]


def write_csv(results: Results, tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write results.csv, a row for each result, and tables.csv, a row for each cell of each table."""
    names = ("value", "std", "printed", "printed_std", "missing", "doubt")
    cells = [
        {"table": table.key, "row": row, "metric": metric.rstrip(" ↑↓"), "column": column}
        | {name: getattr(entry, name) for name in names}
        for table in tables
        for row, (metric, column), entry in table.entries
    ]
    frames = {"results.csv": results.frame.drop(columns="reliability"), "tables.csv": pd.DataFrame(cells)}
    for name, frame in frames.items():
        write_text(folder / name, frame.to_csv(index=False))
    return [folder / name for name in frames]


def write_text(path: Path, text: str) -> None:
    """Write a file that is whole or not there."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _shown(frame: pd.DataFrame, markup: Markup, common_gap: str) -> pd.DataFrame:
    """The frame as texts; columns of two levels have one where the second is empty everywhere."""
    shown = frame.map(lambda value: _cell(value, markup, common_gap))
    shown.index = pd.Index([markup.text(str(row)) for row in frame.index])
    columns: list[Any] = list(frame.columns)
    if all(isinstance(column, tuple) for column in columns):
        pairs = [(markup.text(str(first)), markup.text(str(second))) for first, second in columns]
        lonely = not any(second for _, second in pairs)
        shown.columns = pd.Index([one for one, _ in pairs]) if lonely else pd.MultiIndex.from_tuples(pairs)
    else:
        shown.columns = pd.Index([markup.text(str(column)) for column in columns])
    return shown


def _cell(value: object, markup: Markup, common_gap: str) -> str:
    """Ours, with the printed number in brackets: "**0.061** ± 0.010 (0.059†)"."""
    if isinstance(value, float):
        value = Entry(None if pd.isna(value) else value)
    if not isinstance(value, Entry):
        return markup.text(str(value))
    ours = markup.nothing
    if value.value is not None:
        number = markup.text(value.written(value.value))
        ours = markup.best.format(number) if value.best else number
        ours += markup.std.format(markup.text(value.written(value.std))) if value.std is not None else ""
        if value.missing and value.missing != common_gap:
            ours += markup.mark.format(markup.text(INCOMPLETE))
    if value.printed is None:
        return ours
    number = markup.text(value.written(value.printed))
    printed = markup.bold.format(number) if value.bold else number
    if value.printed_std is not None:
        printed += markup.std.format(markup.text(value.written(value.printed_std)))
    printed += markup.mark.format(markup.text(DOUBTFUL)) if value.doubt else ""
    return ours + markup.printed.format(printed)


def _latex_sign(sign: str) -> str:
    if sign in _LATEX_SIGNS or sign.isascii():
        return _LATEX_SIGNS.get(sign, sign)
    return sign if sign <= "ÿ" else "?"
