"""`equipoise run`: run a recipe and print a summary."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from equipoise.errors import OptionError
from equipoise.research.experiment.modules import load_modules, methods_of
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.recipe import load_recipe
from equipoise.research.experiment.sweep import SweepSummary, run_recipe
from equipoise.research.experiment.workers import InProcess, ProcessPool, Workers
from equipoise.testing.mark import checked_methods


def run_named_recipe(
    name: str,
    *,
    on: str | None,
    data: Path,
    out: Path,
    methods: Sequence[str],
    backbones: Sequence[str],
    targets: Sequence[str],
    tiers: Sequence[int],
    seeds: Sequence[int],
    temperings: Sequence[str],
    limit: int | None,
    epochs: int | None,
    domain_images: int | None,
    ray: bool,
    workers: int | None,
    address: str | None,
    skip_bad_files: bool,
    console: Console | None = None,
) -> int:
    """Run a recipe, print a summary, and return the number of failed cells."""
    if address is not None and not ray:
        raise OptionError("--address names a Ray cluster: expected --engine ray with it")
    whole = load_recipe(name, on)
    load_modules(whole.modules)
    recipe = whole.narrowed(
        methods=methods,
        backbones=backbones,
        seeds=seeds,
        temperings=temperings,
        epochs=epochs,
        domain_images=domain_images,
    )
    shown = console or Console()
    for line in unchecked(whole.modules):
        shown.print(line, highlight=False, markup=False, soft_wrap=True)
    pool = make_workers(ray, workers, address)
    try:
        with RunProgress(shown) as progress:
            summary = run_recipe(
                recipe,
                data=data,
                out=out,
                workers=pool,
                progress=progress,
                targets=targets,
                tiers=tiers,
                limit=limit,
                bad_files="skip" if skip_bad_files else "refuse",
            )
    finally:
        pool.close()
    for line in summary_lines(summary, out, recipe.protocols):
        shown.print(line, highlight=False, markup=False, soft_wrap=True)
    return summary.failed


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


def make_workers(ray: bool, workers: int | None, address: str | None) -> Workers:
    """Workers for a sweep; by default one for each CPU thread of torch, or a single one with a GPU."""
    count = workers or (1 if torch.cuda.is_available() else torch.get_num_threads())
    if ray:
        from equipoise.research.experiment.workers import RayCluster

        return RayCluster(count, address)
    return InProcess() if count == 1 else ProcessPool(count)
