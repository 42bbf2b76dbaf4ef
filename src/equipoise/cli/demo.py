"""`equipoise demo`: run the recipe `drift`, print the story and write its page."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from equipoise.cli.run import make_workers
from equipoise.errors import EquipoiseError
from equipoise.files import whole_file
from equipoise.research.data.cache import Cache, read_stored
from equipoise.research.data.dataset import open_data_set
from equipoise.research.data.reader import Reader
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.recipe import Recipe, RehearsalRecipe, load_recipe
from equipoise.research.experiment.store import CACHE
from equipoise.research.experiment.sweep import run_recipe
from equipoise.research.report.drawing import PAPER
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
from equipoise.version import __version__

FRAMES = 20
"""Example images along the time axis."""
QUICK_IMAGES, QUICK_SHIFTS = 1000, 8
"""With `--quick`: the most images of the training set and of the stream, and a shorter rehearsal."""


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run what is missing of the demo, print its story, write a page and a picture; return the page's path.

    The same seed gives the same numbers on the same kind of machine. `quick` uses fewer images.
    """
    shown, started = console or Console(), time.perf_counter()
    recipe = demo_recipe(seed, quick)
    limit = QUICK_IMAGES if quick else None
    folder = out / ("quick" if quick else "full")
    workers = make_workers(ray=False, workers=None, address=None)
    try:
        with RunProgress(shown) as progress:
            summary = run_recipe(
                recipe, data=out, out=folder, workers=workers, progress=progress, limit=limit
            )
    finally:
        workers.close()
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
    shown.print(
        f"{seconds:.0f} s; see {index} in a browser; the results are in {folder}",
        highlight=False,
        markup=False,
    )
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
