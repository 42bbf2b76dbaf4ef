"""What `equipoise run` does with its options."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from equipoise.bench.engine import Engine, Here, Processes
from equipoise.bench.modules import load_modules
from equipoise.bench.progress import RunProgress
from equipoise.bench.recipe import load_recipe
from equipoise.bench.sweep import run_recipe
from equipoise.errors import OptionError


def run_command(
    name: str,
    *,
    data: Path,
    out: Path,
    methods: Sequence[str],
    backbones: Sequence[str],
    targets: Sequence[str],
    seeds: Sequence[int],
    temperings: Sequence[str],
    limit: int | None,
    epochs: int | None,
    ray: bool,
    workers: int | None,
    address: str | None,
    skip_bad_files: bool,
    console: Console | None = None,
) -> int:
    """Run a recipe and say what came of it; how many cells failed."""
    if address is not None and not ray:
        raise OptionError("--address names a Ray cluster: expected --engine ray with it")
    whole = load_recipe(name)
    load_modules(whole.modules)
    recipe = whole.narrowed(
        methods=methods, backbones=backbones, seeds=seeds, temperings=temperings, epochs=epochs
    )
    shown = console or Console()
    engine = make_engine(ray, workers, address)
    try:
        with RunProgress(shown) as progress:
            outcome = run_recipe(
                recipe,
                data=data,
                out=out,
                engine=engine,
                progress=progress,
                targets=targets,
                limit=limit,
                bad_files="skip" if skip_bad_files else "refuse",
            )
    finally:
        engine.close()
    good = outcome.cells - outcome.failed
    shown.print(
        f"{good} of {outcome.cells} cells in {out / 'results.jsonl'} ({outcome.before} were there before); "
        f"protocols: {', '.join(recipe.protocols)}; see them with: equipoise report {out} --html report.html",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if outcome.failed:
        shown.print(
            f"{outcome.failed} cells failed: their lines have the traceback; the same command tries again",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return outcome.failed


def make_engine(ray: bool, workers: int | None, address: str | None) -> Engine:
    """Where the work is done; without a number one worker for each core that torch would use, or one GPU."""
    count = workers or (1 if torch.cuda.is_available() else torch.get_num_threads())
    if ray:
        from equipoise.bench.on_ray import OnRay

        return OnRay(count, address)
    return Here() if count == 1 else Processes(count)
