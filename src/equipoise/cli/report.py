"""`equipoise report`: write the results of a run as HTML, LaTeX, CSV, figure files or Markdown."""

from collections.abc import Collection, Iterator
from pathlib import Path

from equipoise.errors import OptionError
from equipoise.research.report.drawing import write_figures
from equipoise.research.report.figures import streams_of
from equipoise.research.report.page import all_tables, figures_of, report_markdown, report_page
from equipoise.research.report.part import parts
from equipoise.research.report.results import read_results
from equipoise.research.report.table import file_key, write_csv, write_latex, write_text
from equipoise.research.report.tables import subject


def write_report(
    folder: Path,
    *,
    html: Path | None = None,
    latex: Path | None = None,
    csv: Path | None = None,
    figures: Path | None = None,
    markdown: bool = False,
    methods: Collection[str] = (),
    temperings: Collection[str] = (),
    compare: str | None = None,
) -> Iterator[str]:
    """Read the results of a run, write the requested files, and yield the lines to print."""
    if html is not None and html.is_dir():
        raise OptionError(f"--html: expected a file to write the page to, got the folder {html}")
    results = read_results(folder).only(methods, temperings)
    if compare is not None and compare not in set(results.frame["name"]):
        names = ", ".join(sorted(set(results.frame["name"])))
        raise OptionError(f"--compare: expected one of {names}, got {compare}")
    if html is not None:
        _make_folder(html.parent, "--html")
        write_text(html, report_page(results, compare))
        yield f"see {html} in a browser"
    tables = list(all_tables(parts(results), compare)) if latex or csv else []
    if latex is not None:
        _make_folder(latex, "--latex")
        yield f"{len(write_latex(tables, latex))} files in {latex}; main.tex has them all"
    if csv is not None:
        _make_folder(csv, "--csv")
        yield f"see {' and '.join(map(str, write_csv(results, tables, csv)))}"
    if figures is not None:
        _make_folder(figures, "--figures")
        for part in parts(results):
            for kind, drawn in figures_of(part, streams_of(part, results.streams)).items():
                start = f"{subject(part.scope)} {kind}"
                write_figures({file_key(f"{start} {name}"): each for name, each in drawn.items()}, figures)
        yield f"figures as SVG and PDF in {figures}"
    if markdown:
        yield report_markdown(results, compare)


def _make_folder(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OptionError(
            f"{option}: expected a folder at {folder}, but there is a file in its way"
        ) from error
