"""The report as GitHub Markdown."""

from collections.abc import Iterable, Iterator

from equipoise.report.findings import cautions, findings, part_findings
from equipoise.report.formats import markdown_table, markdown_text
from equipoise.report.names import PROTOCOL_WORDS, subject
from equipoise.report.page import cell_words
from equipoise.report.paper import counted
from equipoise.report.paper_tables import paper_tables, run_to_run_tables
from equipoise.report.results import PROTOCOLS, Results
from equipoise.report.summary import parts
from equipoise.report.table import Table
from equipoise.report.tables import average_tables, detail_tables, test_tables

LEGEND = (
    "Accuracy and ECE (15 bins) are in 0..1, entropy in bits, NLL in nats, the Brier score in 0..2. **Bold** is "
    "the best as written, ours and printed apart; entropy has no best. † marks printed numbers that are "
    "doubtful, ‡ numbers of ours that are not of everything; both are explained below the table. The paper does "
    "not say which answers count; the authors' notebook scores after a pass."
)


def report_markdown(results: Results, compare: str | None = None) -> str:
    """All tables, the findings, failures and notes, as one readable page."""
    return "\n\n".join(_blocks(results, compare)) + "\n"


def _blocks(results: Results, compare: str | None) -> Iterator[str]:
    every = parts(results)
    yield f"# Results\n\n{counted(len(results.frame), 'result')}. {LEGEND}"
    if told := cautions(results, every):
        yield _list(told)
    for protocol in PROTOCOLS:
        there = [part for part in every if part.scope.protocol == protocol]
        if there:
            yield f"## Findings, {PROTOCOL_WORDS[protocol]}"
            yield _list(findings(there))
    for part in every:
        yield f"## {markdown_text(subject(part.scope))}"
        yield _list(part_findings(part))
        for table in (*paper_tables(part), *average_tables(part), *test_tables(part, compare)):
            yield _block(table)
        for table in detail_tables(part):
            yield _block(table, folded=True)
    for table in run_to_run_tables(every):
        yield _block(table)
    if results.failures:
        yield "## Failures"
        yield _list(f"{cell_words(line)}: {line['error'] or 'no error was written'}" for line in results.failures)


def _block(table: Table, *, folded: bool = False) -> str:
    text = markdown_table(table)
    if folded:
        return f"<details><summary>{markdown_text(table.title)}</summary>\n\n{text}\n\n</details>"
    return f"### {markdown_text(table.title)}\n\n{text}"


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(told)}" for told in sentences)
