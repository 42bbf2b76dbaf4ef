"""One run: a method meets a stream, and the cells that come of it."""

import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from equipoise.bench.lines import Cell, Line, Made, Protocol, StreamLine
from equipoise.bench.plan import RunPlan
from equipoise.bench.recipe import REHEARSED
from equipoise.bench.rehearsals import rehearsed_temper
from equipoise.bench.repeatable import seeded
from equipoise.bench.scoring import Divider, quantiles, score
from equipoise.bench.source_model import SourceModel, model_path, pick_device, read_source_model
from equipoise.calibration.temper import Temper
from equipoise.data.cache import read_stored
from equipoise.data.images import Images
from equipoise.data.streams import Order, stream_order
from equipoise.errors import ModelError
from equipoise.functional import certainty_regularizer
from equipoise.network.outcome import SourceView
from equipoise.registry import create
from equipoise.version import __version__

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
TAU_EDGES = tuple(round(2 ** (step / 4), 4) for step in range(-8, 29))
"""Cells of the histogram of tau: four to a doubling, from a quarter to 128."""
SOURCE_BATCH = 200


@dataclass(frozen=True)
class Met:
    """A stream in its order, and what the source model makes of it."""

    pixels: Tensor
    labels: Tensor
    logits: Tensor


def run_cells(run: RunPlan, models: Path, *, look: bool) -> tuple[StreamLine | None, list[Line]]:
    """The lines of a run's cells, and what its stream is like if asked to look; errors become lines too."""
    started, cell = time.perf_counter(), run.any_cell
    stream_line: StreamLine | None = None
    try:
        trained, met = _start(run, models)
        if look:
            stream_line = describe(run, trained, met)
        able, rehearsed, lines = _rehearse(run, trained, models)
        with seeded(run.model.key, cell["stream"], cell["label"]):
            lines += _adapt(able, trained, met, rehearsed) if able.cells else []
        json.dumps(lines, allow_nan=False)  # an answer that is not a number is a failure, too
    except Exception as error:
        lines = failed(run, error)
    seconds = round((time.perf_counter() - started) / max(len(lines), 1), 4)
    for line in lines:
        line["made"]["seconds"] = seconds
    return stream_line, lines


def failed(run: RunPlan, error: BaseException) -> list[Line]:
    """The lines of a run that did not end well."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    lines = [_line(key, cell) for key, cell in run.cells.items()]
    for line in lines:
        line["status"], line["error"], line["traceback"] = "failed", f"{type(error).__name__}: {error}", trace
    return lines


def _rehearse(run: RunPlan, trained: SourceModel, models: Path) -> tuple[RunPlan, Temper | None, list[Line]]:
    """The temper of a run's "rehearsed" cells, if it has any.

    A rehearsal that fails costs those cells alone: the run comes back without them, and with their lines.
    """
    others = [key for key, cell in run.cells.items() if cell["tempering"] != REHEARSED]
    asking = run.without(others)
    if not asking.cells:
        return run, None, []
    try:
        return run, rehearsed_temper(run.any_cell, run.model, trained, models), []
    except Exception as error:
        return run.without(asking.cells), None, failed(asking, error)


def describe(run: RunPlan, trained: SourceModel, met: Met) -> StreamLine:
    """The norms of the source model's logits on a stream, and the certainty regulariser they give."""
    cell, source = run.any_cell, trained.source
    norms, tau = torch.linalg.vector_norm(met.logits.double(), dim=1), _view(cell, trained, met).tau
    tau = tau[tau.isfinite()].double()
    if len(tau) == 0:
        raise ModelError("expected finite logits of the source model, got none for the whole stream")
    edges = torch.tensor(TAU_EDGES, dtype=torch.float64)
    cells = torch.bucketize(tau, edges[1:-1], right=True)
    return StreamLine(
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
        images=len(met.labels),
        levels=list(LEVELS),
        norms=quantiles(norms, LEVELS),
        norm_mean=float(norms.mean()),
        norm_std=float(norms.std(correction=0)),
        taus=quantiles(tau, LEVELS),
        tau_mean=float(tau.mean()),
        tau_std=float(tau.std(correction=0)),
        tau_edges=list(TAU_EDGES),
        tau_counts=torch.bincount(cells, minlength=len(TAU_EDGES) - 1).tolist(),
    )


def _start(run: RunPlan, models: Path) -> tuple[SourceModel, Met]:
    cell = run.any_cell
    parts = [read_stored(path) for path in run.streams]
    trained = read_source_model(
        model_path(models, run.model.key), run.model, parts[0].pixels.shape[1], pick_device()
    )
    for parameter in trained.model.parameters():
        if parameter.ndim == 4:  # the kernels of convolutions
            parameter.data = parameter.data.contiguous(memory_format=_layout(parameter.device))
    return trained, _met(trained, run.streams, cell["order"], cell["seed"])


@lru_cache(maxsize=2)
def _met(trained: SourceModel, streams: tuple[Path, ...], order: Order, seed: int) -> Met:
    """The last streams stay in memory: every method meets the same, one after the other."""
    parts = [read_stored(path) for path in streams]
    rows = stream_order([part.labels for part in parts], order, seed)
    images = Images.join(parts).select(rows)
    device = next(trained.model.parameters()).device
    with torch.no_grad():
        logits = [trained.model(x.to(device).float()).cpu() for x in images.pixels.split(SOURCE_BATCH)]
    return Met(
        images.pixels.to(device).contiguous(memory_format=_layout(device)), images.labels, torch.cat(logits)
    )


def _layout(device: torch.device) -> torch.memory_format:
    """How images and kernels lie in memory: on a GPU convolutions are faster with the channels last."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def _view(cell: Cell, trained: SourceModel, met: Met) -> SourceView:
    options, source = cell["options"], trained.source
    t, tau = certainty_regularizer(met.logits, source.h0, source.kappa, options["t_min"], options["t_max"])
    return SourceView(met.logits, None, t, tau)


def _adapt(run: RunPlan, trained: SourceModel, met: Met, rehearsed: Temper | None) -> list[Line]:
    """One pass of the method without tempering, its answers divided in every way that is asked for."""
    cell = run.any_cell
    temperings = list(dict.fromkeys(cell["tempering"] for cell in run.cells.values()))
    protocols = {cell["protocol"] for cell in run.cells.values()}
    options = cell["options"]
    adapter = create(cell["method"], trained.model, trained.source, tempering="none", **options)
    t_min, t_max = options["t_min"], options["t_max"]
    divider = Divider(temperings, trained.source, trained.fixed_tau, t_min, t_max, rehearsed)
    view = _view(cell, trained, met)
    rows = torch.arange(len(met.labels)).split(cell["batch_size"])
    batches = [(met.pixels[at[0] : at[-1] + 1], view.select(at)) for at in rows]
    answers: dict[tuple[Protocol, str], list[Tensor]] = {}
    for pixels, of_batch in batches:
        logits = adapter(pixels.float()).detach().cpu()
        for kind, divided in divider.online(logits, of_batch):
            answers.setdefault(("online", kind), []).append(divided)
    if "after-pass" in protocols:
        for pixels, of_batch in batches:
            logits = adapter.predict(pixels.float()).cpu()
            for kind, divided in divider.after_pass(logits, of_batch):
                answers.setdefault(("after-pass", kind), []).append(divided)
    return [
        _scored(key, cell, answers[cell["protocol"], cell["tempering"]], met.labels)
        for key, cell in run.cells.items()
    ]


def _scored(key: str, cell: Cell, answers: Sequence[Tensor], labels: Tensor) -> Line:
    line = _line(key, cell)
    line["images"] = len(labels)
    line["scores"], line["reliability"] = score(torch.cat(list(answers)), labels)
    return line


def _line(key: str, cell: Cell) -> Line:
    device = pick_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Line(
        key=key,
        status="ok",
        cell=cell,
        images=0,
        scores=None,
        reliability=None,
        error=None,
        traceback=None,
        made=Made(equipoise=__version__, torch=torch.__version__, device=name, seconds=0.0),
    )
