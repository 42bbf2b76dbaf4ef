"""The demo behind `equipoise demo`: real digits, three domains, every method, one page of results."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from equipoise.data.demo import load_domains
from equipoise.demo.experiment import FULL_SIZE, PROTOCOL, QUICK_SIZE, run_experiment, stage_count
from equipoise.demo.page import page
from equipoise.demo.progress import Stages
from equipoise.demo.results import SCHEMA, DemoResults, to_json
from equipoise.demo.samples import sample_strip
from equipoise.demo.table import domain_table, estimate_table, mean_table
from equipoise.demo.words import demo_findings, options_note, rehearsal_note
from equipoise.files import whole_file
from equipoise.version import __version__

__all__ = ["run_demo"]


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run the demo, print its results, write results.json and index.html to `out`; return the page's path.

    The same seed gives the same numbers on the same machine with the same number of threads. `quick` uses
    fewer images.
    """
    with _folder(out):
        return _run(out, seed, quick, console or Console())


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder before the work rather than after it; an interrupted run leaves no empty one behind."""
    new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if new and not any(path.iterdir()):
            path.rmdir()
        raise


def _run(out: Path, seed: int, quick: bool, console: Console) -> Path:
    started = time.perf_counter()
    size = QUICK_SIZE if quick else FULL_SIZE
    with Stages(console, 1 + stage_count()) as stages:
        with stages.stage("loading and drawing the digits"):
            domains = load_domains(size.images_per_domain, seed)
        methods, rehearsal = run_experiment(domains, size, seed=seed, stages=stages)
    results = DemoResults(
        schema=SCHEMA,
        equipoise=__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        seed=seed,
        quick=quick,
        protocol=PROTOCOL,
        images_per_domain=size.images_per_domain,
        epochs=size.epochs,
        seconds=round(time.perf_counter() - started, 1),
        domains=[domain.name for domain in domains],
        methods=methods,
        rehearsal=rehearsal,
    )

    console.print(mean_table(results))
    console.print(domain_table(results))
    console.print(estimate_table(results))
    for sentence in [*demo_findings(results), rehearsal_note(results), options_note(results)]:
        console.print(f"- {sentence}", highlight=False, markup=False)

    index = out / "index.html"
    samples = {domain.name: sample_strip(domain) for domain in domains}
    for path, text in {out / "results.json": to_json(results), index: page(results, samples)}.items():
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    console.print(f"{results['seconds']:.0f} s; see {index} in a browser", highlight=False, markup=False)
    return index
