"""One run: a method adapts to a stream, and its answers are scored for several cells."""

import json
import time
import traceback
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from equipoise.calibration.novelty import Novelty
from equipoise.calibration.temper import SourceView, Temper, Tempering
from equipoise.errors import ModelError
from equipoise.evaluation import Answers, evaluate
from equipoise.factory import create
from equipoise.functional import certainty_regularizer
from equipoise.research.data.cache import read_stored
from equipoise.research.data.image_stream import ImageKindName, ImageStream, make_image_stream
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import RunPlan
from equipoise.research.experiment.rehearsals import rehearsed_temper, untempered_options
from equipoise.research.experiment.repeatable import seeded
from equipoise.research.experiment.schema import (
    RAW,
    REHEARSED,
    Cell,
    CellResult,
    EstimatedAccuracy,
    Provenance,
    StreamSummary,
)
from equipoise.research.experiment.scores import (
    Divider,
    bin_stream,
    oracle,
    quantiles,
    score,
    stream_estimate,
    trace_stream,
)
from equipoise.research.experiment.trained_model import (
    TrainedModel,
    layout,
    model_path,
    pick_device,
    read_source_model,
)
from equipoise.version import __version__

QUANTILE_LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
TAU_EDGES = tuple(round(2 ** (step / 4), 4) for step in range(-8, 29))
"""Cells of the histogram of tau: four to a doubling, from a quarter to 128."""
HELD_BYTES = 2**30
"""Streams of no more pixels stay on the device; larger ones are gathered in every pass."""
HELD_SHARE = 8
"""On a GPU, those of no more than one part in so many of its free memory, if that is more."""
SOURCE_BATCH = 200


@dataclass(frozen=True)
class StreamData:
    """A stream in its order.

    Attributes:
        stream: the places of its images, its segments and options.
        parts: the images of each domain, memory-mapped.
        labels: of the stream; -1 for an image of no class.
        logits: of the source model, on the CPU.
        held: the pixels in the order of the stream on the model's device, if they are few.
        device: of the model.
    """

    stream: ImageStream
    parts: Sequence[Images]
    labels: Tensor
    logits: Tensor
    held: Tensor | None
    device: torch.device

    def batches(self, size: int) -> Iterator[Tensor]:
        """The images of each batch, as floats on the model's device."""
        if self.held is not None:
            yield from (pixels.float() for pixels in self.held.split(size))
            return
        for pixels, _ in self.stream.batches(self.parts, size):
            yield pixels.to(self.device).contiguous(memory_format=layout(self.device))


def read_stream(
    trained: TrainedModel,
    parts: Mapping[str, Images],
    order: ImageKindName,
    seed: int,
    options: Mapping[str, Any],
) -> StreamData:
    """The stream of these domains, by name, and the source model's logits on it, in one pass."""
    domains, device = list(parts.values()), next(trained.model.parameters()).device
    of_parts = [part.labels for part in domains]
    stream = make_image_stream(of_parts, order, seed, names=list(parts), **options)
    few = len(stream) * domains[0].pixels[0].nbytes <= _most_held(device)
    logits, pixels = [], []
    with torch.no_grad():
        for images, _ in stream.batches(domains, SOURCE_BATCH):
            on_device = images.to(device)
            logits.append(trained.model(on_device).cpu())
            if few:
                pixels.append(on_device.to(torch.uint8).contiguous(memory_format=layout(device)))
    held = torch.cat(pixels) if few else None
    return StreamData(stream, domains, stream.labels(of_parts), torch.cat(logits), held, device)


def _most_held(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return max(HELD_BYTES, free // HELD_SHARE)


_HELD: dict[Hashable, StreamData] = {}
"""The stream of the last run, by all that it depends on."""


def run_cells(
    run: RunPlan, models: Path, *, summarise: bool
) -> tuple[StreamSummary | None, list[CellResult]]:
    """The results of a run's cells, errors included, and the summary of its stream if `summarise` is set."""
    started, cell = time.perf_counter(), run.any_cell
    summary: StreamSummary | None = None
    try:
        trained, stream = _start(run, models)
        if summarise:
            summary = summarise_stream(run, trained, stream.logits[stream.labels >= 0])
        able, rehearsed, results = _rehearse(run, trained, models)
        with seeded(run.model.key, cell["stream"], cell["label"]):
            results += _adapt(able, trained, stream, rehearsed) if able.cells else []
        json.dumps(results, allow_nan=False)  # a score that is not a number is a failure, too
    except Exception as error:
        results = failed(run, error)
    seconds = round((time.perf_counter() - started) / max(len(results), 1), 4)
    for result in results:
        result["made"]["seconds"] = seconds
    return summary, results


def failed(run: RunPlan, error: BaseException) -> list[CellResult]:
    """The results of a run that raised an error."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    results = [_result(key, cell, run.left_out) for key, cell in run.cells.items()]
    for result in results:
        result["status"], result["traceback"] = "failed", trace
        result["error"] = f"{type(error).__name__}: {error}"
    return results


def _rehearse(
    run: RunPlan, trained: TrainedModel, models: Path
) -> tuple[RunPlan, Temper | None, list[CellResult]]:
    """The temper of a run's "rehearsed" cells, if it has any.

    A failed rehearsal costs those cells alone: the run is returned without them, with their failed results.
    """
    asking = run.rehearsed()
    if not asking.cells:
        return run, None, []
    try:
        return run, rehearsed_temper(asking.any_cell, run.model, trained, models), []
    except Exception as error:
        return run.without(asking.cells), None, failed(asking, error)


def summarise_stream(run: RunPlan, trained: TrainedModel, logits: Tensor) -> StreamSummary:
    """The norms of the source model's logits on a stream, and the certainty regulariser of those logits."""
    cell, source = run.any_cell, trained.source
    norms, tau = torch.linalg.vector_norm(logits.double(), dim=1), _view(cell, trained, logits).tau
    tau = tau[tau.isfinite()].double()
    if len(tau) == 0:
        raise ModelError("expected finite logits of the source model, got none for the whole stream")
    edges = torch.tensor(TAU_EDGES, dtype=torch.float64)
    cells = torch.bucketize(tau, edges[1:-1], right=True)
    summary = StreamSummary(
        key=run.stream_key,
        data=cell["data"],
        backbone=cell["backbone"],
        target=cell["target"],
        tier=cell["tier"],
        seed=cell["seed"],
        limit=cell["limit"],
        epochs=cell["epochs"],
        input_size=cell["input_size"],
        order=cell["order"],
        origin=cell["origin"],
        t_min=cell["options"]["t_min"],
        t_max=cell["options"]["t_max"],
        h0=source.h0,
        kappa=source.kappa,
        fixed_tau=trained.fixed_tau,
        images=len(logits),
        levels=list(QUANTILE_LEVELS),
        norms=quantiles(norms, QUANTILE_LEVELS),
        norm_mean=float(norms.mean()),
        norm_std=float(norms.std(correction=0)),
        taus=quantiles(tau, QUANTILE_LEVELS),
        tau_mean=float(tau.mean()),
        tau_std=float(tau.std(correction=0)),
        tau_edges=list(TAU_EDGES),
        tau_counts=torch.bincount(cells, minlength=len(TAU_EDGES) - 1).tolist(),
    )
    if "order_options" in cell:
        summary["order_options"] = cell["order_options"]
    if "domain_images" in cell:
        summary["domain_images"] = cell["domain_images"]
    return summary


def _start(run: RunPlan, models: Path) -> tuple[TrainedModel, StreamData]:
    """The model, and the stream, which stays in memory for the methods that come next."""
    trained = read_source_model(model_path(models, run.model.key), pick_device())
    cell = run.any_cell
    kind = cast("ImageKindName", cell["order"])  # of the recipe, which checks it
    options = cell.get("order_options", {})
    key = trained, run.streams, run.domains, kind, cell["seed"], json.dumps(options)
    if key not in _HELD:
        _HELD.clear()  # before the next one is read: there is one at a time
        parts = {name: read_stored(path) for name, path in zip(run.domains, run.streams, strict=True)}
        _HELD[key] = read_stream(trained, parts, kind, cell["seed"], options)
    return trained, _HELD[key]


def _view(cell: Cell, trained: TrainedModel, logits: Tensor) -> SourceView:
    options, source = cell["options"], trained.source
    t, tau = certainty_regularizer(logits, source.h0, source.kappa, options["t_min"], options["t_max"])
    return SourceView(logits, t, tau)


def _adapt(
    run: RunPlan, trained: TrainedModel, stream: StreamData, rehearsed: Temper | None
) -> list[CellResult]:
    """One pass of the method without tempering, its logits divided by one tempering of the run at a time."""
    cell, size = run.any_cell, run.any_cell["batch_size"]
    protocols = {cell["protocol"] for cell in run.cells.values()}
    options = untempered_options(cell)
    adapter = create(cell["method"], trained.model, trained.source, tempering="none", **options)
    novelty = Novelty(trained.source.inputs) if rehearsed is not None and trained.source.inputs else None
    learning = evaluate(adapter, stream.batches(size), novelty=novelty)
    raw = {"online": [(answers, adapter.weight_distance) for answers in learning]}
    if "after-pass" in protocols:
        after = evaluate(adapter, stream.batches(size), learn=False)
        raw["after-pass"] = [(answers, 0.0) for answers in after]
    view = _view(cell, trained, stream.logits)
    scored: dict[str, CellResult] = {}
    for kind in dict.fromkeys(cell["tempering"] for cell in run.cells.values()):
        divider = Divider(_divisor(kind, cell, trained, rehearsed))
        for protocol, answered in raw.items():  # "online" first: what it observes, "after-pass" divides by
            answers, estimates = _divided(divider, protocol, answered, view)
            for key, asked in run.cells.items():
                if (asked["protocol"], asked["tempering"]) == (protocol, kind):
                    result = _result(key, asked, run.left_out)
                    scored[key] = _scored(run, result, stream, answers, estimates)
    return [scored[key] for key in run.cells]


def _divisor(kind: str, cell: Cell, trained: TrainedModel, rehearsed: Temper | None) -> Temper | float:
    if kind == REHEARSED and rehearsed is not None:
        return rehearsed
    if kind == "fixed":
        return trained.fixed_tau
    options = cell["options"]
    return Temper(cast("Tempering", kind), trained.source, options["t_min"], options["t_max"])


def _divided(
    divider: Divider, protocol: str, raw: Sequence[tuple[Answers, float]], view: SourceView
) -> tuple[list[Tensor], list[EstimatedAccuracy | None]]:
    """The answers of each batch with the divider's tempering, and the estimate after each."""
    answers, estimates, online = [], [], protocol == "online"
    places = torch.arange(len(view.tau)).split(len(raw[0][0].logits))
    for (batch, distance), rows in zip(raw, places, strict=True):
        seen = view.select(rows)
        answers.append(divider.online(batch, seen, distance) if online else divider.after_pass(batch, seen))
        estimates.append(divider.estimate())
    return answers, estimates


def _scored(
    run: RunPlan,
    result: CellResult,
    stream: StreamData,
    answers: Sequence[Tensor],
    estimates: Sequence[EstimatedAccuracy | None],
) -> CellResult:
    """The result with the scores of the answers to images of a class, and the stream over time."""
    cell, counted = result["cell"], stream.labels >= 0
    logits, labels = torch.cat(list(answers)), stream.labels
    if not counted.all():
        logits, labels = logits[counted], labels[counted]
        result["no_class"] = int((~counted).sum())
    result["images"], result["classes"] = len(labels), len(labels.unique())
    result["scores"], result["reliability"] = score(logits, labels)
    if "order_options" in cell or len(run.domains) > 1:
        result["described"] = stream.stream.describe()
    if cell["tempering"] == RAW:
        result["oracle"] = oracle(logits, labels)
    if cell["protocol"] == "online":
        if (estimate := stream_estimate(answers, stream.labels, estimates)) is not None:
            result["estimate"] = estimate
        if run.trace == "batches":
            result["trace"] = trace_stream(answers, stream.labels, estimates, run.segments)
        elif run.trace == "bins":
            result["bins"] = bin_stream(answers, stream.labels, estimates, stream.stream.segments)
    return result


def _result(key: str, cell: Cell, left_out: int) -> CellResult:
    device = pick_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return CellResult(
        key=key,
        status="ok",
        cell=cell,
        images=0,
        classes=0,
        left_out=left_out,
        scores=None,
        reliability=None,
        error=None,
        traceback=None,
        made=Provenance(equipoise=__version__, torch=torch.__version__, device=name, seconds=0.0),
    )
