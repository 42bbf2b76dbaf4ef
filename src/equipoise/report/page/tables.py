"""Tables as HTML: ours above, the paper's below in the same cell, marks where a number needs care."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from equipoise.report.tables.table import Column, Table, TableEntry, common_gap, written
from equipoise.report.tables.wording import DOUBTFUL, INCOMPLETE, PROTOCOL_WORDS


def table_html(table: Table) -> str:
    """A table in a box of its own that scrolls if it is wide, its notes below."""
    compared = any(entry.printed is not None for row in table.rows for entry in row.entries)
    # What is missing behind all numbers alike is said once, in the notes.
    marked = not common_gap(table)
    rows, before = "", ""
    for row in table.rows:
        method = row.label.rpartition(" (")[0]
        cells = "".join(
            _cell(entry, column, compared=compared, marked=marked)
            for entry, column in zip(row.entries, table.columns, strict=True)
        )
        joined = ' class="joined"' if method and method == before else ""
        rows += f'<tr{joined}><th scope="row">{escape(row.label)}</th>{cells}</tr>\n'
        before = method
    protocol = PROTOCOL_WORDS.get(table.protocol, table.protocol)
    key = (
        '<p class="note key"><span class="ours">0.123</span> ours, <span class="printed">0.123</span> '
        "printed in the paper.</p>"
        if compared
        else ""
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table{' class=compared' if compared else ''}>"
        f"<caption><div>{escape(table.title)}<small>{escape(protocol)}</small></div></caption>"
        f"<thead>{_head(table.columns)}</thead>\n<tbody>{rows}</tbody></table></div>"
        f"{key}{_notes(table.notes)}"
    )


def plain_table(
    caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "words"
) -> str:
    """A table of words, or of counts; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{kind}">'
        f"<caption><div>{escape(caption)}</div></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(columns: tuple[Column, ...]) -> str:
    """One row of headings, or two where metrics have several columns."""
    groups = [(metric, list(several)) for metric, several in groupby(columns, key=lambda each: each.metric)]
    if not any(column.heading for column in columns):
        heads = "".join(
            f'<th scope="col">{escape(metric)}</th>' for metric, several in groups for _ in several
        )
        return f"<tr><td></td>{heads}</tr>"
    above = "".join(
        f'<th scope="colgroup" colspan="{len(several)}">{escape(metric)}</th>' for metric, several in groups
    )
    starts = {id(several[0]) for _, several in groups[1:]}
    below = "".join(
        f'<th scope="col"{_edge(id(column) in starts)}>{escape(column.heading)}</th>' for column in columns
    )
    return f"<tr><td></td>{above}</tr><tr><td></td>{below}</tr>"


def _edge(first: bool) -> str:
    return ' class="edge"' if first else ""


def _cell(entry: TableEntry, column: Column, *, compared: bool, marked: bool) -> str:
    mark = _mark(INCOMPLETE) if marked and entry.missing and entry.ours is not None else ""
    ours = _number(entry.ours, entry.ours_std, column) + mark
    if not compared:
        return f'<td class="best">{ours}</td>' if entry.best else f"<td>{ours}</td>"
    theirs = ""
    if entry.printed is not None:
        doubt = _mark(DOUBTFUL) if entry.suspicious else ""
        number = _number(entry.printed, entry.printed_std, column)
        bold = f"<b>{number}</b>" if entry.printed_best else number
        theirs = f'<span class="printed"><span class="hidden">paper: </span>{bold}{doubt}</span>'
    return f'<td><span class="{"ours best" if entry.best else "ours"}">{ours}</span>{theirs}</td>'


def _number(value: float | None, std: float | None, column: Column) -> str:
    if value is None:
        return '<span class="none">&ndash;</span>'
    shown = escape(written(value, column))
    return shown if std is None else f"{shown}<small> ±{written(std, column)}</small>"


def _mark(sign: str) -> str:
    return f"<sup>{sign}</sup>"


def _notes(notes: tuple[str, ...]) -> str:
    if not notes:
        return ""
    return '<ul class="notes">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"
