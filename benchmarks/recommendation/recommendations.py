"""Recommendations for the source models of a run, by method and made-up shift.

    python -m benchmarks.recommendation.recommendations OUT RECIPE DATA \
        --on digits --csv FILE

on the models of `equipoise run RECIPE --on digits --data DATA --out OUT`, RECIPE being one of a stream. That
run may still be going on: a model is waited for. `equipoise.recommend` sees held-out source images alone, and
tries the methods of all short lists, with the labels and options of the recipe, so that `regret_table.py` can
hold any rule of choice against the results of the run. The rows of a model and a kind of stream are added to
the CSV file when they are measured, and are not measured again. Several programs need several files.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.results.models import arguments, trained_model
from equipoise.files import whole_file
from equipoise.recommendation.candidates import Candidate, StreamKind
from equipoise.research.data import Cache, Reader, open_data_set
from equipoise.research.experiment.plan import RunPlan, make_plan
from equipoise.research.experiment.recipe import Recipe, load_recipe
from equipoise.research.experiment.store import CACHE, MODELS
from equipoise.research.experiment.sweep import find_weights, picked_shifts
from equipoise.research.experiment.trained_model import TrainedModel, held_out_images, model_path
from equipoise.research.experiment.user_files import load_modules

STREAMS: Sequence[StreamKind] = ("continual", "correlated", "recurring", "noisy")
LABELS = (
    "source",
    "poise",
    "norm",
    "foa_shift",
    "bn_alpha",
    "bn_ema",
    "t3a",
    "lame",
    "tent",
    "eta",
    "sar",
    "sotta",
    "rotta",
    "roid",
    "roid-prior",
)
"""The methods of all short lists, by their labels in recipes."""
SETTING = ["data", "backbone", "target", "seed", "stream"]
OFTEN = 5
"""Seconds between two looks for a model."""


def source_runs(recipe: Recipe, given: argparse.Namespace) -> list[RunPlan]:
    """A run of the source model on each stream of a recipe; the images of the streams are not read."""
    data, out = given.data.resolve(), given.out.resolve()
    load_modules(recipe.modules)
    narrow = recipe.narrowed(methods=["source"], seeds=given.seeds, backbones=given.backbones)
    data_set = open_data_set(narrow.data, data)
    shifts = picked_shifts(data_set.shifts, given.targets, narrow.tiers)
    cache = Cache(out / CACHE)
    parts = dict.fromkeys(part for shift in shifts for part in shift.sources)
    stored = {part: cache.store(data_set, part, given.limit, Reader()) for part in parts}
    unread = dict.fromkeys((shift.stream for shift in shifts), next(iter(stored.values())))
    weights = find_weights(narrow, data)
    return make_plan(narrow, data_set, shifts, stored, weights, given.limit, domains=unread)


def as_they_come(runs: Sequence[RunPlan], models: Path, seconds: float) -> Iterator[RunPlan]:
    """The runs whose models are there, then those whose models appear; none for so many seconds ends it."""
    missing, until = list(runs), time.monotonic() + seconds
    while missing:
        ready = [run for run in missing if model_path(models, run.model.key).exists()]
        if ready:
            missing.remove(ready[0])
            yield ready[0]
            until = time.monotonic() + seconds
        elif time.monotonic() > until:
            names = "; ".join(dict.fromkeys(run.model.name for run in missing))
            raise SystemExit(f"no model in {models} of: {names}")
        else:
            time.sleep(OFTEN)


def wait_for_models(models: Path, seconds: float) -> None:
    """Wait for a first model, as the run reads the source images before it trains."""
    until = time.monotonic() + seconds
    while not any(models.glob("*.safetensors")):
        if time.monotonic() > until:
            raise SystemExit(f"no model in {models} after {seconds:g} s")
        time.sleep(OFTEN)


def listed_methods(recipe: Recipe) -> dict[str, Candidate]:
    """The candidates by label, with the options of a recipe."""
    if lacking := [label for label in LABELS if label not in recipe.methods]:
        print(f"not in the recipe: {', '.join(lacking)}", flush=True)
    entries = {label: recipe.methods[label] for label in LABELS if label in recipe.methods}
    return {label: Candidate(entry.method or label, entry.options) for label, entry in entries.items()}


def held_out_loader(run: RunPlan, count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """A random choice of the source images that the model of a run was not trained on."""
    held = held_out_images(run.model)
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(run.model.seed))[:count]
    return [(part.pixels.float(), part.labels) for part in map(held.select, order.split(size))]


def recommended(
    trained: TrainedModel,
    loader: list[tuple[Tensor, Tensor]],
    kind: StreamKind,
    listed: dict[str, Candidate],
    given: argparse.Namespace,
) -> eq.Recommendation:
    """The recommendation of all methods for a kind of stream, with statistics of the held-out samples."""
    return eq.recommend(
        trained.model,
        loader,
        stream=kind,
        budget=None,
        methods=[(one.name, one.options) for one in listed.values()],
        length=given.length,
        samples=given.samples,
        batch_size=given.batch_size,
        seed=trained.info.seed,
        progress=False,
    )


def rows_of(found: eq.Recommendation, listed: dict[str, Candidate], setting: dict[str, Any]) -> pd.DataFrame:
    """The rows of a recommendation: a method in a form on a shift; without answers, with its problem."""
    labels = {str(candidate): label for label, candidate in listed.items()}
    chosen = {
        (labels[str(Candidate(row["method"], row["options"]))], row["tempering"]): row for row in found.table
    }
    rows: list[dict[str, Any]] = [
        {"label": label, "tempering": tempering, "problem": row["problem"]}
        for (label, tempering), row in chosen.items()
        if row["problem"]
    ]
    for part in found.shifts:
        label = labels[str(Candidate(part["method"], part["options"]))]
        row = chosen[label, part["tempering"]]
        rows.append(
            {
                "label": label,
                "tempering": part["tempering"],
                "shift": part["shift"],
                "samples": part["samples"],
                "correct": round(part["accuracy"] * part["samples"]),
                "nll": round(part["nll"] * part["samples"], 4),
                "seconds": round(row["seconds"] or 0, 3),
                "chosen": row["recommended"],
            }
        )
    columns = [*SETTING, "label", "tempering", "shift", "samples", "correct", "nll", "seconds", "chosen"]
    return pd.DataFrame([setting | row for row in rows], columns=[*columns, "problem"])


def measured_settings(path: Path) -> tuple[pd.DataFrame, set[tuple[str, ...]]]:
    """The rows of a file, and the settings that it has."""
    if not path.exists():
        return pd.DataFrame(), set()
    rows = pd.read_csv(path)
    # A method that found no memory beside other programs may find it now.
    failed = rows.loc[rows["problem"].astype(str).str.contains("OutOfMemory"), SETTING].drop_duplicates()
    if len(failed):
        joined = rows.merge(failed, on=SETTING, how="left", indicator=True)
        rows = joined[joined["_merge"] == "left_only"].drop(columns="_merge")
    return rows, set(map(tuple, rows[SETTING].astype(str).to_numpy().tolist()))


def measure(run: RunPlan, listed: dict[str, Candidate], given: argparse.Namespace) -> None:
    """Add the rows of a model for each kind of stream that is not there yet."""
    loader = None
    for kind in given.streams:
        cell = run.any_cell
        setting = {name: cell[name] for name in ("data", "backbone", "target", "seed")} | {"stream": kind}
        before, there = measured_settings(given.csv)
        if tuple(map(str, setting.values())) in there:
            continue
        trained, started = trained_model(run, given.out.resolve() / MODELS), time.perf_counter()
        loader = loader or held_out_loader(run, given.samples, given.batch_size)
        found = recommended(trained, loader, kind, listed, given)
        rows = rows_of(found, listed, setting)
        with whole_file(given.csv) as path:
            (pd.concat([before, rows]) if len(before) else rows).to_csv(path, index=False)
        print(*setting.values(), f"{time.perf_counter() - started:.1f} s", found.why, flush=True)


def main() -> None:
    """Measure the models of the command line."""
    parser = arguments(__doc__ or "", images=0)
    parser.add_argument("--on", help="the recipe of the data set, as in `equipoise run`")
    parser.add_argument("--csv", type=Path, required=True, help="the file that rows are added to")
    parser.add_argument("--seeds", nargs="*", type=int, default=[], help="of the models; all by default")
    parser.add_argument("--streams", nargs="*", default=STREAMS, choices=get_args(StreamKind))
    parser.add_argument("--length", type=int, default=4000, help="of the made-up streams")
    parser.add_argument("--samples", type=int, default=1000, help="labelled, held out")
    parser.add_argument("--batch-size", type=int, default=64, help="of the made-up streams")
    parser.add_argument("--wait", type=float, default=1200, help="seconds for a model that is not there yet")
    given = parser.parse_args()
    torch.set_num_threads(1)
    models, recipe = given.out.resolve() / MODELS, load_recipe(given.recipe, given.on)
    wait_for_models(models, given.wait)
    listed = listed_methods(recipe)
    for run in as_they_come(source_runs(recipe, given), models, given.wait):
        measure(run, listed, given)


if __name__ == "__main__":
    main()
