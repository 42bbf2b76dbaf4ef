"""What `equipoise report` does with its options."""

from collections.abc import Iterator
from pathlib import Path

from equipoise.files import whole_file
from equipoise.report.numbers.results import read_results
from equipoise.report.page.page import report_page
from equipoise.report.tables.latex import write_latex
from equipoise.report.tables.markdown import markdown as markdown_text


def write_report(folder: Path, *, html: Path | None, latex: Path | None, markdown: bool) -> Iterator[str]:
    """Read the results of a run, write what is asked for, and say where it is."""
    results = read_results(folder)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(html) as partial:
            partial.write_text(report_page(results), encoding="utf-8")
        yield f"see {html} in a browser"
    if latex is not None:
        latex.mkdir(parents=True, exist_ok=True)
        yield f"{len(write_latex(results, latex))} files in {latex}"
    if markdown:
        yield markdown_text(results)
