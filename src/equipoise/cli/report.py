"""`equipoise report`: write the results of a run as HTML, LaTeX or Markdown."""

from collections.abc import Iterator
from pathlib import Path

from equipoise.errors import OptionError
from equipoise.files import whole_file
from equipoise.report.numbers.results import read_results
from equipoise.report.page.page import report_page
from equipoise.report.tables.latex import write_latex
from equipoise.report.tables.markdown import markdown as markdown_text


def write_report(folder: Path, *, html: Path | None, latex: Path | None, markdown: bool) -> Iterator[str]:
    """Read the results of a run, write the requested files, and yield the lines to print."""
    if html is not None and html.is_dir():
        raise OptionError(f"--html: expected a file to write the page to, got the folder {html}")
    if latex is not None and latex.exists() and not latex.is_dir():
        raise OptionError(f"--latex: expected a folder for the tables, got the file {latex}")
    results = read_results(folder)
    if html is not None:
        _make_folder(html.parent, "--html")
        with whole_file(html) as partial:
            partial.write_text(report_page(results), encoding="utf-8")
        yield f"see {html} in a browser"
    if latex is not None:
        _make_folder(latex, "--latex")
        yield f"{len(write_latex(results, latex))} files in {latex}"
    if markdown:
        yield markdown_text(results)


def _make_folder(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OptionError(
            f"{option}: expected a folder at {folder}, but there is a file in its way"
        ) from error
