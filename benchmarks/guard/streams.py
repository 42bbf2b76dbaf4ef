"""The guard on the streams of a finished run: does it act, when, and at what accuracy.

    python -m benchmarks.guard.streams OUT RECIPE DATA --csv FILE

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained. Every case is a
method with the recipe's options and batch size on the images of a target; the same adapter without a guard
meets the same batches. Tent with a rate of its own is there to break. A row is added to the CSV file as soon
as it is measured; rows of another target, method, rate or order stay.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import equipoise as eq
from benchmarks.results.models import SEED, arguments, plans, some_images, trained_model
from equipoise.json_form import from_json
from equipoise.production.guard.decider import Options, Watch, decide
from equipoise.production.guard.observation import Observation, answer_pairs
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import RunPlan
from equipoise.research.experiment.rehearsals import rehearsal_path, rehearsed_source
from equipoise.research.experiment.schema import RAW, REHEARSED
from equipoise.research.experiment.store import MODELS
from equipoise.research.experiment.trained_model import TrainedModel, model_path
from equipoise.streams import KindName, make_stream


@dataclass(frozen=True)
class Case:
    """A method on a stream.

    Attributes:
        method: its label in the recipe.
        order: of the images.
        rate: a learning rate in place of the recipe's.
        size: a batch size in place of the recipe's.
    """

    method: str
    order: KindName = "shuffled"
    rate: float | None = None
    size: int | None = None


CASES = (
    *(Case("tent", rate=rate, size=50) for rate in (0.5, 0.1, 0.05, 0.02, 0.01)),
    Case("poise", "sorted"),
    Case("poise"),
    *(Case(method) for method in ("dec", "norm", "t3a", "sotta", "eta", "tent")),
)
KEY = ["data", "backbone", "target", "method", "order", "rate", "batch_size", "images"]
NAMES = ("poise", "tent", "eta", "sotta", "dec", "norm", "t3a")


def adapter_of(run: RunPlan, trained: TrainedModel, models: Path, rate: float | None) -> eq.Adapter:
    """The adapter of a run, rehearsed where the run has stored a rehearsal."""
    cells = {cell["tempering"]: cell for cell in run.cells.values()}
    options: dict[str, Any] = {**cells[RAW]["options"], **({} if rate is None else {"learning_rate": rate})}
    if REHEARSED in cells and rehearsal_path(models, cells[REHEARSED]).exists():
        source = rehearsed_source(cells[REHEARSED], run.model, trained, models)
        return eq.create(cells[RAW]["method"], trained.model, source, tempering=REHEARSED, **options)
    return eq.create(cells[RAW]["method"], trained.model, trained.source, tempering=RAW, **options)


def measured(adapter: eq.Adapter, images: Images, size: int) -> dict[str, Any]:
    """The accuracies of the adapter alone, of the source model and under guard, and the first action."""
    log = Path(tempfile.mkdtemp()) / "log"
    guarded, right = eq.Guarded(deepcopy(adapter), log=log), []
    classes, seen_at = Watch.fresh(Options()).collapse, None
    started, seconds = time.perf_counter(), [0.0, 0.0]
    for x, y in zip(images.pixels.split(size), images.labels.split(size), strict=True):
        before = time.perf_counter()
        alone = adapter(x.float())
        between = time.perf_counter()
        under = guarded(x.float())
        seconds = [seconds[0] + between - before, seconds[1] + time.perf_counter() - between]
        answers = (alone, adapter.source_logits(x.float()), under)
        right.append([int((logits.argmax(1) == y).sum()) for logits in answers])
        pairs = answer_pairs(alone.detach(), answers[1])
        classes = classes.after(Observation(len(x), alone.shape[1], pairs), len(right))
        seen_at = len(right) if seen_at is None and classes.alarm else seen_at
    counts = torch.tensor(right).double().cumsum(0)
    adapted, source, watched = (counts[-1] / len(images.labels)).tolist()
    if eq.replay(log) != list(guarded.events):
        raise SystemExit("the log does not reproduce the events")
    row: dict[str, Any] = {
        **largest(log),
        "rehearsed": adapter.temper.rehearsed is not None,
        "adapted": adapted,
        "source": source,
        "guarded": watched,
        "collapsed": adapted < source - 0.05,
        "acted": bool(guarded.events),
        **classes_alone(seen_at, counts, size),
        "actions": sum(event.action in ("rollback", "reset") for event in guarded.events),
        "ms": 1000 * seconds[0] / len(counts),
        "guarded_ms": 1000 * seconds[1] / len(counts),
        "seconds": time.perf_counter() - started,
    }
    return row | (first_action(guarded.events[0], counts, size, len(images.labels)) if guarded.events else {})


def largest(log: Path) -> dict[str, float]:
    """The largest distances and evidence before the first action, from the log."""
    names = ("weights", "step", "statistics", "collapse", "estimates", "disagreement")
    watch, found = None, dict.fromkeys(names, 0.0)
    for line in map(json.loads, log.read_text().splitlines()):
        if watch is None:
            options, watch = from_json(Options, line["options"]), from_json(Watch, line["state"])
            continue
        watch, decision = decide(options, watch, from_json(Observation, line["observation"]))
        if decision.action != "none":
            break
        runs, tests = watch.runaway, watch.processes
        now = {"weights": runs.weights, "step": runs.step, "statistics": runs.statistics}
        now |= {name: tests[name].evidence for name in ("collapse", "estimates", "disagreement")}
        found = {name: max(value, now[name]) for name, value in found.items()}
    return {f"largest_{name}": value for name, value in found.items()}


def classes_alone(batch: int | None, counts: torch.Tensor, size: int) -> dict[str, Any]:
    """The batch at which the test on classes would have acted without the others, and the fall by then.

    Batch 0 stands for none.
    """
    if batch is None:
        return {"classes_batch": 0, "classes_drop": 0.0}
    behind = float(counts[batch - 1, 1] - counts[batch - 1, 0])
    return {"classes_batch": batch, "classes_drop": behind / (batch * size)}


def first_action(event: eq.Event, counts: torch.Tensor, size: int, images: int) -> dict[str, Any]:
    """The first action, and the accuracies over the stream up to then.

    `drop` is the source model's accuracy less that of the guarded answers over the stream so far, `lost` the
    same difference as a share of the whole stream.
    """
    seen = min(event.batch * size, images)
    adapted, source, watched = (counts[event.batch - 1] / seen).tolist()
    worst = (counts[:, 1] - counts[:, 2])[: event.batch].max()
    return {
        "batch": event.batch,
        "action": event.action,
        "trigger": event.trigger,
        "adapted_then": adapted,
        "source_then": source,
        "guarded_then": watched,
        "drop": source - watched,
        "lost": float(worst) / images,
        "reason": event.reason,
    }


def _key(rows: pd.DataFrame) -> "pd.Series[str]":
    """The key of each row as text; an empty field is the same as none."""
    return rows[KEY].astype(object).where(rows[KEY].notna(), "").astype(str).agg("|".join, axis=1)


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a CSV file, in place of one with the same key."""
    rows = pd.DataFrame([row])
    if path.exists():
        old = pd.read_csv(path, keep_default_na=False, na_values=[""])
        rows = pd.concat([old[_key(old) != _key(rows).iloc[0]], rows])
    rows.round(5).to_csv(path, index=False)


def main() -> None:
    """Measure the cases of the command line."""
    parser = arguments(__doc__ or "", images=1_000_000)
    parser.add_argument("--csv", type=Path, required=True, help="the file that rows are added to")
    parser.add_argument("--cases", nargs="*", default=[], help="only those of these methods")
    given = parser.parse_args()
    models = given.out.resolve() / MODELS
    by_name: dict[tuple[str, str], RunPlan] = {}
    for run in plans(given, NAMES, [RAW, REHEARSED]):
        by_name.setdefault((run.any_cell["target"], run.any_cell["label"]), run)
    for target in dict.fromkeys(target for target, _ in by_name):
        for case in CASES:
            run = by_name[target, case.method]
            if given.cases and case.method not in given.cases:
                continue
            if not model_path(models, run.model.key).exists():
                print(f"{target}: no trained model yet")
                break
            images = some_images(run, given.images)
            images = images.select(make_stream([images.labels], case.order, SEED).rows)
            cell, size = run.any_cell, case.size or run.any_cell["batch_size"]
            adapter = adapter_of(run, trained_model(run, models), models, case.rate)
            row = {
                "data": cell["data"],
                "backbone": cell["backbone"],
                "target": target,
                "method": case.method,
                "order": case.order,
                "rate": case.rate or 0.0,
                "batch_size": size,
                "images": len(images.labels),
                **measured(adapter, images, size),
            }
            add(given.csv, row)
            print(
                {name: value for name, value in row.items() if name not in ("data", "backbone")}, flush=True
            )


if __name__ == "__main__":
    main()
