"""Poise under streams that break other methods: other batches, sorted by class, ten passes, abrupt changes.

    python -m benchmarks.results.robust OUT RECIPE DATA benchmarks/results/robust.csv

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained. A row is added to
the CSV file as soon as it is measured; the same command again measures only the rows that are missing: those
of another model or of other code are measured again, and the old ones are to be removed.

"source" is the model without adaptation, "poise" is tempered by its rehearsal, "tent" is raw; all three meet
the same images in the same order, with the options of the recipe. Sizes of batches are those of the stream,
so tent's is not its recipe's. The rehearsal is that of the run, with batches of 50, whatever the stream's
are: other sizes show how well it carries over.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.results.models import SEED, arguments, plans, some_images, trained_model
from benchmarks.results.robustness import STREAMS, Stream
from equipoise.errors import EquipoiseError, RecipeError
from equipoise.research.data.corruptions import corrupt
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import RunPlan
from equipoise.research.experiment.rehearsals import rehearsal_path, rehearsed_source
from equipoise.research.experiment.schema import RAW, REHEARSED
from equipoise.research.experiment.scores import score
from equipoise.research.experiment.store import MODELS
from equipoise.research.experiment.trained_model import TrainedModel, layout, pick_device
from equipoise.streams import make_stream

FEW = ("batches of 50", "sorted by class", "ten passes", "abrupt changes")
METHODS = {"source": (RAW, tuple(STREAMS)), "poise": (REHEARSED, tuple(STREAMS)), "tent": (RAW, FEW)}
"""The tempering of each method, and the streams that it meets."""

KEY = ("data", "backbone", "target", "stream", "method", "model", "code")
COLUMNS = (
    *("data", "backbone", "target", "seed", "stream", "method", "images"),
    *("accuracy", "ece", "nll", "estimate", "answered_by_source", "after", "model", "code"),
)


CHANGES = ("clean", "gaussian_noise", "contrast", "inverted", "clean")
"""The segments of "abrupt changes", each with its own fifth of the images; corruptions are of tier 5."""


def changed(pixels: Tensor, change: str) -> Tensor:
    """Images as they are, inverted, or corrupted; grey ones are shown three times, and the first is taken."""
    if change == "clean":
        return pixels
    if change == "inverted":
        return 255 - pixels
    colour = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    made = torch.from_numpy(corrupt(colour, change, 5, range(len(pixels))))
    return made.permute(0, 3, 1, 2)[:, : pixels.shape[1]]


def segments(stream: Stream, images: Images) -> list[Images]:
    """The images of a stream in its order, cut where they change."""
    ordered = images.select(make_stream([images.labels], stream.order, SEED).rows)
    if not stream.changes:
        return [ordered]
    parts = [ordered.select(rows) for rows in torch.arange(len(ordered)).tensor_split(len(CHANGES))]
    return [Images(changed(part.pixels, how), part.labels) for part, how in zip(parts, CHANGES, strict=True)]


class Rows:
    """A CSV file of rows, and the keys of those that were there at the start."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, frozenset[tuple[str, ...]]()
        if self._begun:
            rows = pd.read_csv(path, dtype=str, keep_default_na=False)
            if tuple(rows.columns) != COLUMNS:
                raise SystemExit(f"{path}: expected the columns {COLUMNS}, got {tuple(rows.columns)}")
            self.done = frozenset(rows[list(KEY)].itertuples(index=False, name=None))

    @property
    def _begun(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > 0

    def add(self, row: dict[str, Any]) -> None:
        """Append a row to the file, after the header if the file is new."""
        frame = pd.DataFrame([row], columns=list(COLUMNS))
        frame.round(5).to_csv(self.path, mode="a", header=not self._begun, index=False)


def key_of(run: RunPlan, stream: str) -> dict[str, str]:
    """The columns that tell the row of a method on a stream from all others."""
    cell = run.any_cell
    target = cell["target"] if cell["tier"] is None else f"{cell['target']}/{cell['tier']}"
    names = (cell["data"], cell["backbone"], target, stream, cell["label"], cell["model"], cell["code"])
    return dict(zip(KEY, names, strict=True))


def adapter_of(run: RunPlan, trained: TrainedModel, models: Path) -> eq.Adapter:
    """The adapter of a run's method with the recipe's options, and with the rehearsal of the run."""
    label, (tempering, _) = run.any_cell["label"], METHODS[run.any_cell["label"]]
    cell = next((cell for cell in run.cells.values() if cell["tempering"] == tempering), None)
    if cell is None:
        raise RecipeError(f"methods.{label}: expected `rehearsed: true` in the recipe")
    source = trained.source
    if tempering == REHEARSED:
        if not rehearsal_path(models, cell).exists():
            print(f"{run.model.name}: {label} has no rehearsal there and is rehearsed now", flush=True)
        source = rehearsed_source(cell, run.model, trained, models)
    return eq.create(cell["method"], trained.model, source, tempering=tempering, **cell["options"])


def measured(adapter: eq.Adapter, stream: Stream, parts: Sequence[Images]) -> dict[str, Any]:
    """The scores of an adapter's answers in the last pass over a stream, and its accuracy afterwards."""
    labels = torch.cat([part.labels for part in parts])
    device = pick_device()
    pixels = [part.pixels.to(device).contiguous(memory_format=layout(device)) for part in parts]
    batches = [batch for segment in pixels for batch in segment.split(stream.size)]
    adapter.reset()
    for _ in range(stream.passes - 1):
        for batch in batches:
            adapter(batch.float())
    answers, steps = [], []
    for batch in batches:
        answers.append(adapter(batch.float()).detach())
        steps += [adapter.last] if adapter.last else []
    order = make_stream([labels], "shuffled", SEED + 1).rows
    shuffled = torch.cat(pixels)[order.to(device)].contiguous(memory_format=layout(device))
    after = torch.cat([adapter.predict(batch.float()) for batch in shuffled.split(50)])
    scores, _ = score(torch.cat(answers).cpu(), labels)
    row = {"images": len(labels), **{name: scores[name] for name in ("accuracy", "ece", "nll")}}
    row["after"] = float((after.argmax(1).cpu() == labels[order]).double().mean())
    estimates = [step.accuracy.value for step in steps if step.accuracy]
    if estimates:
        row["estimate"] = sum(estimates) / len(estimates)
        row["answered_by_source"] = sum(step.answered_by == "source" for step in steps) / len(steps)
    return row


def of_model(
    runs: Mapping[str, RunPlan], given: argparse.Namespace, done: frozenset[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """The missing rows of some methods, by their names, on one model and target."""
    keys = {
        (method, stream): key_of(runs[method], stream) for method in runs for stream in METHODS[method][1]
    }
    missing = {place: key for place, key in keys.items() if tuple(key.values()) not in done}
    if not missing:
        return
    any_run, models = next(iter(runs.values())), given.out.resolve() / MODELS
    trained, images = trained_model(any_run, models), some_images(any_run, given.images)
    asked = dict.fromkeys(method for method, _ in missing)
    adapters = {method: adapter_of(runs[method], trained, models) for method in asked}
    for name, stream in STREAMS.items():
        waiting = [method for method in asked if (method, name) in missing]
        count = min(given.small, len(images)) if stream.size == 1 else len(images)
        parts = segments(stream, images.select(torch.arange(count))) if waiting else []
        for method in waiting:
            # The source model answers each image by itself: neither batches nor passes make a difference.
            met = Stream() if method == "source" else stream
            yield {"seed": SEED, **missing[method, name], **measured(adapters[method], met, parts)}


def main() -> None:
    """Measure the rows that are missing."""
    parser = arguments(__doc__ or "", images=2000)
    parser.add_argument("csv", type=Path, help="the file of the rows")
    parser.add_argument("--small", type=int, default=500, help="so many of them in batches of 1")
    given = parser.parse_args()
    rows, left_out = Rows(given.csv), 0
    runs = plans(given, list(METHODS), [RAW, REHEARSED])
    for _, group in groupby(runs, key=lambda run: (run.model.key, run.streams)):
        by_method, started = {run.any_cell["label"]: run for run in group}, time.perf_counter()
        try:
            for row in of_model(by_method, given, rows.done):
                rows.add(row)
                seconds, started = time.perf_counter() - started, time.perf_counter()
                place = ", ".join(row[name] for name in KEY)
                print(f"{place}: accuracy {row['accuracy']:.3f}, {seconds:.1f} s", flush=True)
        except (EquipoiseError, FileNotFoundError) as error:
            left_out += 1
            print(f"{by_method['source'].model.name}: left out: {error}", file=sys.stderr, flush=True)
    sys.exit(1 if left_out else 0)


if __name__ == "__main__":
    main()
