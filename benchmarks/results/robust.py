"""Poise under streams that break other methods: other batches, sorted by class, ten passes, abrupt changes.

    python benchmarks/results/robust.py OUT RECIPE DATA benchmarks/results/robust.csv

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained. A row is added to
the CSV file as soon as it is measured; the same command again measures only the rows that are missing.

"source" is the model without adaptation, "poise" is tempered by its rehearsal, "tent" is raw; all three meet
the same images in the same order, with the options of the recipe. Sizes of batches are those of the stream,
so tent's is not its recipe's. The rehearsal is that of the run, with batches of 50, whatever the stream's
are: other sizes show how well it carries over.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from models import SEED, arguments, layout, plans, some_images, trained_model
from torch import Tensor

import equipoise as eq
from equipoise.bench.plan import RunPlan
from equipoise.bench.rehearsals import rehearsal_path, rehearsed_source
from equipoise.bench.schema import RAW, REHEARSED
from equipoise.bench.scoring import score
from equipoise.bench.source_model import SourceModel, pick_device
from equipoise.bench.sweep import MODELS
from equipoise.data.corruptions.dispatch import corrupt
from equipoise.data.images import Images
from equipoise.data.streams import Order, stream_order
from equipoise.errors import EquipoiseError, RecipeError


class Stream(NamedTuple):
    """The size of batches, the order of the images, the number of passes, and whether the images change."""

    size: int = 50
    order: Order = "recorded"
    passes: int = 1
    changes: bool = False


STREAMS = {
    "batches of 50": Stream(),
    "batches of 1": Stream(size=1),
    "batches of 16": Stream(size=16),
    "batches of 200": Stream(size=200),
    "sorted by class": Stream(order="sorted"),
    "sorted by class, batches of 1": Stream(size=1, order="sorted"),
    "ten passes": Stream(passes=10),
    "abrupt changes": Stream(changes=True),
}
FEW = ("batches of 50", "sorted by class", "ten passes", "abrupt changes")
METHODS = {"source": (RAW, tuple(STREAMS)), "poise": (REHEARSED, tuple(STREAMS)), "tent": (RAW, FEW)}
"""The tempering of each method, and the streams that it meets."""

CHANGES = ("clean", "gaussian_noise", "contrast", "inverted", "clean")
"""The segments of "abrupt changes", each with its own fifth of the images; corruptions are of tier 5."""

KEY = ("data", "backbone", "target", "stream", "method")
COLUMNS = (
    *("data", "backbone", "target", "seed", "stream", "method", "images"),
    *("accuracy", "ece", "nll", "estimate", "answered_by_source", "after"),
)


class Rows:
    """The rows of a CSV file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def done(self) -> frozenset[tuple[str, ...]]:
        """The keys of the rows that were there at the start."""
        if not self._begun:
            return frozenset()
        rows = pd.read_csv(self.path, dtype=str, keep_default_na=False)
        if tuple(rows.columns) != COLUMNS:
            raise SystemExit(f"{self.path}: expected the columns {COLUMNS}, got {tuple(rows.columns)}")
        return frozenset(rows[list(KEY)].itertuples(index=False, name=None))

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
    names = (cell["data"], cell["backbone"], target, stream, cell["label"])
    return dict(zip(KEY, names, strict=True))


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
    ordered = images.select(stream_order([images.labels], stream.order, SEED))
    if not stream.changes:
        return [ordered]
    parts = [ordered.select(rows) for rows in torch.arange(len(ordered)).tensor_split(len(CHANGES))]
    return [Images(changed(part.pixels, how), part.labels) for part, how in zip(parts, CHANGES, strict=True)]


def adapter_of(run: RunPlan, trained: SourceModel, models: Path) -> eq.Adapter:
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
    pixels = [part.pixels.to(pick_device()).contiguous(memory_format=layout()) for part in parts]
    batches = [batch for segment in pixels for batch in segment.split(stream.size)]
    adapter.reset()
    for _ in range(stream.passes - 1):
        for batch in batches:
            adapter(batch.float())
    answers, steps = [], []
    for batch in batches:
        answers.append(adapter(batch.float()).detach())
        steps += [adapter.last] if adapter.last else []
    order = stream_order([labels], "shuffled", SEED + 1)
    shuffled = torch.cat(pixels)[order.to(pick_device())].contiguous(memory_format=layout())
    after = torch.cat([adapter.predict(batch.float()) for batch in shuffled.split(50)])
    scores, _ = score(torch.cat(answers).cpu(), labels)
    row = {"images": len(labels), **{name: scores[name] for name in ("accuracy", "ece", "nll")}}
    row["after"] = float((after.argmax(1).cpu() == labels[order]).double().mean())
    estimates = [step.accuracy.value for step in steps if step.accuracy]
    if estimates:
        row["estimate"] = sum(estimates) / len(estimates)
        row["answered_by_source"] = sum(step.answered_by == "source" for step in steps) / len(steps)
    return row


def of_model(runs: Sequence[RunPlan], given: argparse.Namespace, rows: Rows) -> Iterator[dict[str, Any]]:
    """The missing rows of the methods on one model and target."""
    keys = {
        (at, stream): key_of(run, stream)
        for at, run in enumerate(runs)
        for stream in METHODS[run.any_cell["label"]][1]
    }
    missing = {place: key for place, key in keys.items() if tuple(key.values()) not in rows.done}
    if not missing:
        return
    models = given.out.resolve() / MODELS
    trained = trained_model(runs[0], models)
    adapters = {at: adapter_of(runs[at], trained, models) for at in {at: None for at, _ in missing}}
    images = some_images(runs[0], given.images)
    for name, stream in STREAMS.items():
        waiting = [at for at in adapters if (at, name) in missing]
        few = torch.arange(min(given.small if stream.size == 1 else given.images, len(images)))
        parts = segments(stream, images.select(few)) if waiting else []
        for at in waiting:
            # The source model answers each image by itself: neither batches nor passes make a difference.
            met = Stream() if runs[at].any_cell["label"] == "source" else stream
            yield {"seed": SEED, **missing[at, name], **measured(adapters[at], met, parts)}


def main() -> None:
    """Measure the rows that are missing."""
    parser = arguments(__doc__ or "", images=1500)
    parser.add_argument("csv", type=Path, help="the file of the rows")
    parser.add_argument("--small", type=int, default=300, help="so many of them in batches of 1")
    given = parser.parse_args()
    rows, left_out = Rows(given.csv), 0
    runs = plans(given, list(METHODS), [RAW, REHEARSED])
    for _, group in groupby(runs, key=lambda run: (run.model.key, run.streams)):
        same = list(group)
        started = time.perf_counter()
        try:
            for row in of_model(same, given, rows):
                rows.add(row)
                seconds, started = time.perf_counter() - started, time.perf_counter()
                print(
                    ", ".join(row[name] for name in KEY),
                    f"{row['accuracy']:.3f}, {seconds:.1f} s",
                    flush=True,
                )
        except (EquipoiseError, FileNotFoundError) as error:
            left_out += 1
            print(
                f"{same[0].model.name}: left out: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
    sys.exit(1 if left_out else 0)


if __name__ == "__main__":
    main()
