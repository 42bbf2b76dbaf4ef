"""The work of `equipoise run`, `equipoise demo` and `equipoise report`."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from equipoise.errors import EquipoiseError, OptionError
from equipoise.files import whole_file
from equipoise.research.data.cache import Cache, read_stored
from equipoise.research.data.dataset import open_data_set
from equipoise.research.data.reader import Reader
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.recipe import Recipe, RehearsalRecipe, load_recipe
from equipoise.research.experiment.store import CACHE
from equipoise.research.experiment.sweep import SweepSummary, run_recipe
from equipoise.research.experiment.user_files import methods_of
from equipoise.research.experiment.workers import InProcess, ProcessPool, Workers
from equipoise.research.report.figures import streams_of
from equipoise.research.report.page import all_tables, figures_of, report_markdown, report_page
from equipoise.research.report.part import parts
from equipoise.research.report.results import read_results
from equipoise.research.report.story import (
    WIDE,
    findings,
    headline,
    over_time_figure,
    says_and_right,
    story_page,
    stream_scores,
    tell,
)
from equipoise.research.report.style import PAPER, write_figures
from equipoise.research.report.table import file_key, write_csv, write_latex, write_text
from equipoise.research.report.tables import subject
from equipoise.testing.mark import checked_methods
from equipoise.version import __version__

FRAMES = 20
"""Example images along the time axis."""
QUICK_IMAGES, QUICK_SHIFTS = 1000, 8
"""With `--quick`: the most images of the training set and of the stream, and a shorter rehearsal."""


def summary_lines(summary: SweepSummary, out: Path, protocols: Sequence[str]) -> list[str]:
    """The lines at the end of a run: the counts of its cells, and the command that shows them."""
    lines = [
        f"{summary.cells - summary.failed} of {summary.cells} cells in {out / 'results.jsonl'} "
        f"({summary.before} were there before); protocols: {', '.join(protocols)}; see them with: "
        f"equipoise report {out} --html report.html"
    ]
    if summary.of_other_code:
        lines.append(
            f"{summary.of_other_code} results of other code stay in the file; "
            "the report shows the newest only"
        )
    if summary.failed:
        lines.append(
            f"{summary.failed} cells failed: their lines have the traceback; the same command tries again"
        )
    return lines


def unchecked(modules: Sequence[str]) -> list[str]:
    """A line for each method in files that `equipoise check` has not passed as they are now."""
    lines = []
    for path in modules:
        file = Path(path)
        shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        lines += [
            f"{shown}: the method {name!r} was not checked; run: equipoise check {shown}"
            for name in methods_of(path)
            if name not in checked_methods(file)
        ]
    return lines


def make_workers(ray: bool = False, workers: int | None = None, address: str | None = None) -> Workers:
    """Workers for a sweep; by default one for each CPU thread of torch, or a single one with a GPU."""
    count = workers or (1 if torch.cuda.is_available() else torch.get_num_threads())
    if ray:
        from equipoise.research.experiment.workers import RayCluster

        return RayCluster(count, address)
    return InProcess() if count == 1 else ProcessPool(count)


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run what is missing of the demo, print its story, write a page and a picture; return the page's path.

    The same seed gives the same numbers on the same kind of machine. `quick` uses fewer images.
    """
    shown, started = console or Console(), time.perf_counter()
    recipe = demo_recipe(seed, quick)
    limit = QUICK_IMAGES if quick else None
    folder = out / ("quick" if quick else "full")
    with closing(make_workers()) as workers, RunProgress(shown) as progress:
        summary = run_recipe(recipe, data=out, out=folder, workers=workers, progress=progress, limit=limit)
    if summary.failed:
        raise EquipoiseError(f"{summary.failed} cells failed: {folder / 'results.jsonl'} has the tracebacks")
    frame = read_results(folder).frame
    story = tell(frame[frame["seed"] == seed])
    seconds = time.perf_counter() - started
    facts = (
        f"equipoise {__version__}, seed {seed}, {story.total:,} images in batches of 50"
        f"{', fewer images and a shorter rehearsal (--quick)' if quick else ''}, {seconds:.0f} s."
    )
    index, frames = out / "index.html", _frames(folder, limit)
    with whole_file(index) as partial:
        partial.write_text(story_page(story, frames, facts), encoding="utf-8")
    with whole_file(out / "picture.png") as partial:
        over_time_figure(story, frames, *WIDE).savefig(partial, format="png", dpi=150, facecolor=PAPER.light)
    shown.print(headline(story), highlight=False, markup=False, style="bold")
    shown.print(_table(says_and_right(story), "Certainty and accuracy in each segment"))
    shown.print(_table(stream_scores(story).map("{:.3f}".format), "The whole stream"))
    for sentence in findings(story):
        shown.print(f"- {sentence}", highlight=False, markup=False)
    told = f"{seconds:.0f} s; see {index} in a browser; the results are in {folder}"
    shown.print(told, highlight=False, markup=False)
    return index


def _table(frame: pd.DataFrame, title: str) -> Table:
    """A frame of texts for the terminal."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for head in frame.columns:
        table.add_column("\n".join(head) if isinstance(head, tuple) else str(head), justify="right")
    for name, *values in frame.itertuples():
        table.add_row(str(name), *map(str, values))
    return table


def demo_recipe(seed: int, quick: bool) -> Recipe:
    """The recipe `drift` with one seed; shorter if `quick`."""
    recipe = load_recipe("drift").narrowed(seeds=[seed])
    return recipe.model_copy(update={"rehearsal": RehearsalRecipe(shifts=QUICK_SHIFTS)}) if quick else recipe


def _frames(folder: Path, limit: int | None) -> list[NDArray[np.uint8]]:
    """Images of the stream at equal distances."""
    data_set = open_data_set("drift", folder)
    stored = Cache(folder / CACHE).store(data_set, "stream", limit, Reader(workers=1))
    pixels = read_stored(stored.path).pixels
    step = len(pixels) / FRAMES
    return [pixels[int((place + 0.5) * step), 0].numpy() for place in range(FRAMES)]


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
