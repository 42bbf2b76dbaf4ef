"""The report as GitHub Markdown."""

import re
from collections.abc import Iterable

from equipoise.bench.schema import Cell, CellResult
from equipoise.report.numbers.paper import counted
from equipoise.report.numbers.results import RunResults, seeds_of
from equipoise.report.numbers.runs import MethodVariant
from equipoise.report.tables.own_tables import average_tables, detail_tables, significance_tables
from equipoise.report.tables.papers import paper_tables
from equipoise.report.tables.table import Column, Table, TableEntry, common_gap, written
from equipoise.report.tables.wording import DOUBTFUL, INCOMPLETE, PROTOCOL_WORDS, listed, variant_name

_NOTHING = "\N{EN DASH}"


def markdown(results: RunResults) -> str:
    """All tables, what failed, and what was left out, as one readable page."""
    parts = ["# Results", *_overview(results)]
    for protocol in results.protocols():
        said = f"Protocol: {PROTOCOL_WORDS[protocol]}."
        if theirs := paper_tables(results, protocol):
            parts += [f"## The paper's tables, {protocol}", f"{said} Every cell: ours (printed)."]
            parts += [block(table) for table in theirs]
        parts += [f"## All methods, {protocol}", said]
        parts += [block(table) for table in average_tables(results, protocol)]
        if tests := significance_tables(results, protocol):
            parts += [f"## Is DEC better than the best of the others, {protocol}", said]
            parts += [block(table) for table in tests]
        if details := detail_tables(results, protocol):
            parts += [f"## By domain and tier, {protocol}", said]
            parts += [block(table, folded=True) for table in details]
    if results.failures:
        parts += ["## What failed", "\n".join(_failure(line) for line in results.failures)]
    return "\n\n".join(parts) + "\n"


def block(table: Table, *, folded: bool = False) -> str:
    """One table with its title, protocol and notes; `folded`, only the title is seen until it is opened."""
    title, protocol = _plain(table.title), f"Protocol: {table.protocol}."
    notes = "\n".join(f"- {_plain(note)}" for note in (protocol, *table.notes))
    body = f"{rows(table)}\n\n{notes}"
    if folded:
        return f"<details><summary>{_html(table.title)}</summary>\n\n{body}\n\n</details>"
    return f"### {title}\n\n{body}"


def rows(table: Table) -> str:
    """The table itself."""
    everywhere = common_gap(table)
    head = ["", *(_heading(column) for column in table.columns)]
    lines = [head, ["---", *["---:"] * len(table.columns)]]
    for row in table.rows:
        cells = (
            cell(entry, column, everywhere) for entry, column in zip(row.entries, table.columns, strict=True)
        )
        lines.append([_plain(row.label), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(entry: TableEntry, column: Column, everywhere: str = "") -> str:
    """Ours, with the printed number in brackets: "**0.061** ± 0.010 (0.059†)"."""
    ours = _NOTHING
    if entry.ours is not None:
        ours = _number(entry.ours, entry.ours_std, column, bold=entry.best)
        if entry.missing and entry.missing != everywhere:
            ours += INCOMPLETE
    if entry.printed is None:
        return ours
    printed = _number(entry.printed, entry.printed_std, column, bold=entry.printed_best)
    return f"{ours} ({printed}{DOUBTFUL if entry.suspicious else ''})"


def describe_cell(cell: Cell) -> str:
    """Which experiment a cell is, in one line."""
    tier = "" if cell["tier"] is None else f" tier {cell['tier']}"
    return (
        f"{cell['data']}, {cell['backbone']}, {cell['target']}{tier}, seed {cell['seed']}, "
        f"{variant_name(MethodVariant(cell['label'], cell['tempering']))}, {cell['protocol']}"
    )


def _overview(results: RunResults) -> Iterable[str]:
    counts = [counted(len(results.lines), "result")]
    if results.failures:
        counts.append(f"{counted(len(results.failures), 'failed cell')} (listed at the end, in no table)")
    seeds = seeds_of(results.lines)
    told = f"{listed(counts)}."
    if seeds:
        told += f" Seeds: {listed(map(str, seeds))}."
    yield told + _left_out(results)
    made = dict.fromkeys(
        f"equipoise {line['made']['equipoise']}, torch {line['made']['torch']}, {line['made']['device']}"
        for line in results.lines
    )
    if made:
        yield f"Made with {_plain('; '.join(made))}."
    yield (
        "Accuracy and ECE (15 bins) are in 0..1, entropy in bits, NLL in nats, the Brier score in 0..2. "
        "**Bold** is the best of its column as written, ours and printed apart; entropy has no best. "
        f"{DOUBTFUL} marks printed numbers that are doubtful, {INCOMPLETE} numbers of ours that are not of "
        "everything; both are explained below the table. The paper does not say which answers count; the "
        "authors' notebook scores after a pass."
    )


def _left_out(results: RunResults) -> str:
    told = ""
    if results.damaged:
        told += f" {counted(results.damaged, 'line')} could not be read and {_were(results.damaged)} skipped."
    if results.superseded:
        told += (
            f" {counted(results.superseded, 'result')} of models or streams that were made anew since "
            f"{_were(results.superseded)} left out."
        )
    return told


def _failure(line: CellResult) -> str:
    error = " ".join((line["error"] or "no error message").split())
    key = re.sub(r"[^0-9A-Za-z_.-]", "", line["key"])
    return f"- `{key}` {_plain(describe_cell(line['cell']))}: {_plain(error)}"


def _heading(column: Column) -> str:
    return _plain(f"{column.metric} {column.heading}".strip())


def _number(value: float, std: float | None, column: Column, *, bold: bool) -> str:
    number = written(value, column)
    number = f"**{number}**" if bold else number
    return number if std is None else f"{number} ± {written(std, column)}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, also in a table."""
    return re.sub(r"([\\`*_|<>\[\]~#$])", r"\\\1", text)


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
