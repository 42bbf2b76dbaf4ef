"""The demo behind `equipoise demo`: real digits, three domains, every method, one page of results."""

import time
from pathlib import Path

import torch
from rich.console import Console

from equipoise.demo.domains import load_domains
from equipoise.demo.experiment import FULL, PROTOCOL, QUICK, run_experiment, stage_count
from equipoise.demo.page import page
from equipoise.demo.progress import Stages
from equipoise.demo.results import SCHEMA, Results, to_json
from equipoise.demo.samples import sample_strip
from equipoise.demo.table import domain_table, mean_table
from equipoise.demo.words import findings
from equipoise.files import whole_file
from equipoise.version import __version__

__all__ = ["run_demo"]


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run the demo, print its results, write results.json and index.html to `out`; return the page's path.

    The same seed gives the same numbers. `quick` uses fewer images and less training.
    """
    started = time.perf_counter()
    console = console or Console()
    size = QUICK if quick else FULL
    with Stages(console, 1 + stage_count()) as stages:
        with stages.stage("loading and drawing the digits"):
            domains = load_domains(size.images_per_domain, seed)
        methods = run_experiment(domains, size, seed=seed, stages=stages)
    results = Results(
        schema=SCHEMA,
        equipoise=__version__,
        torch=torch.__version__,
        seed=seed,
        quick=quick,
        protocol=PROTOCOL,
        images_per_domain=size.images_per_domain,
        epochs=size.epochs,
        seconds=round(time.perf_counter() - started, 1),
        domains=[domain.name for domain in domains],
        methods=methods,
    )

    console.print(mean_table(results))
    console.print(domain_table(results))
    for sentence in findings(results):
        console.print(f"- {sentence}", highlight=False, markup=False)

    index = out / "index.html"
    samples = {domain.name: sample_strip(domain) for domain in domains}
    out.mkdir(parents=True, exist_ok=True)
    for path, text in {out / "results.json": to_json(results), index: page(results, samples)}.items():
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    console.print(f"{results['seconds']:.0f} s; see {index} in a browser", highlight=False, markup=False)
    return index
