"""`equipoise demo`: run the recipe `drift`, print the story and write its page."""

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from equipoise.bench.progress import RunProgress
from equipoise.bench.recipe import Recipe, load_recipe
from equipoise.bench.sweep import CACHE, run_recipe
from equipoise.cli.run import make_workers
from equipoise.data.cache import Cache, read_stored
from equipoise.data.reader import Reader
from equipoise.data.registry import open_data_set
from equipoise.errors import EquipoiseError
from equipoise.files import whole_file
from equipoise.report.formats import text_frame
from equipoise.report.results import read_results
from equipoise.report.story import findings, headline, tell
from equipoise.report.story_page import says_and_right, scores, story_page
from equipoise.version import __version__

FRAMES = 20
"""Example images along the time axis."""
QUICK_IMAGES = 1500
"""The most images of the training set and of the stream with `--quick`."""


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run what is missing of the demo, print its story, write index.html to `out`; return the page's path.

    The same seed gives the same numbers on the same kind of machine. `quick` uses fewer images.
    """
    shown, started = console or Console(), time.perf_counter()
    recipe = _recipe(seed, quick)
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
    story = tell(read_results(folder))
    seconds = time.perf_counter() - started
    facts = (
        f"equipoise {__version__}, seed {seed}, {story.total:,} images in batches of 50, "
        f"{'fewer images (--quick), ' if quick else ''}{seconds:.0f} s. The same as `equipoise run drift`."
    )
    index = out / "index.html"
    with whole_file(index) as partial:
        partial.write_text(story_page(story, _frames(folder, limit), facts), encoding="utf-8")
    for text in (headline(story), "", text_frame(says_and_right(story)), "", text_frame(scores(story)), ""):
        shown.print(text, highlight=False, markup=False)
    for sentence in findings(story):
        shown.print(f"- {sentence}", highlight=False, markup=False)
    shown.print(f"{seconds:.0f} s; see {index} in a browser", highlight=False, markup=False)
    return index


def _recipe(seed: int, quick: bool) -> Recipe:
    recipe = load_recipe("drift").narrowed(seeds=[seed])
    if not quick:
        return recipe
    return recipe.model_copy(update={"rehearsal": recipe.rehearsal.model_copy(update={"shifts": 8})})


def _frames(folder: Path, limit: int | None) -> list[NDArray[np.uint8]]:
    """Images of the stream at equal distances."""
    data_set = open_data_set("drift", folder)
    stored = Cache(folder / CACHE).store(data_set, "stream", limit, Reader(workers=1))
    pixels = read_stored(stored.path).pixels
    step = len(pixels) / FRAMES
    return [pixels[int((place + 0.5) * step), 0].numpy() for place in range(FRAMES)]
