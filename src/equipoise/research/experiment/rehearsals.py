"""Rehearsals on held-out source images: run once for a model and a method, then read from a file."""

from pathlib import Path
from typing import Any

import torch

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Temper
from equipoise.core.assembly import EXECUTION_OPTIONS
from equipoise.errors import RehearsalError, StateError
from equipoise.factory import make_method
from equipoise.rehearsal.labelled import FEWEST_SAMPLES
from equipoise.rehearsal.rehearse import rehearse
from equipoise.research.experiment.plan import ModelPlan, RunPlan
from equipoise.research.experiment.provenance import content_key
from equipoise.research.experiment.repeatable import seeded
from equipoise.research.experiment.schema import Cell
from equipoise.research.experiment.trained_model import (
    MEASURE_BATCH,
    TrainedModel,
    held_out_images,
    model_path,
    pick_device,
    read_source_model,
)

_NOT_REHEARSED = (*EXECUTION_OPTIONS, "seed")
"""Options that a rehearsal chooses itself, or does not depend on."""


def rehearsed_temper(cell: Cell, plan: ModelPlan, trained: TrainedModel, models: Path) -> Temper:
    """The temper of an adapter of the cell's method with its rehearsal."""
    source = rehearsed_source(cell, plan, trained, models)
    method, _ = make_method(cell["method"], cell["options"])
    # The range of t in a cell is the regulariser's: temperatures have the range of the rehearsal.
    return Temper(
        "rehearsed", source, rehearsal=source.rehearsal_of(cell["method"]), compares=method.compares
    )


def untempered_options(cell: Cell) -> dict[str, Any]:
    """The options of a cell without tempering: the range of t only where the method learns with it."""
    method, _ = make_method(cell["method"], cell["options"])
    left_out = () if method.asks_source else ("t_min", "t_max")
    return {name: value for name, value in cell["options"].items() if name not in left_out}


def rehearsed_source(cell: Cell, plan: ModelPlan, trained: TrainedModel, models: Path) -> SourceStatistics:
    """The model's statistics with a rehearsal of the cell's method: from its file, or made and written."""
    found, _ = _stored(cell, models)
    if found is None or found.model_fingerprint != trained.source.model_fingerprint:
        found = _made(cell, plan, trained)
        found.save(rehearsal_path(models, cell))  # atomic: of two workers, the last one's file stays
    return found


def rehearsal_path(models: Path, cell: Cell) -> Path:
    """The file, beside the model, of the rehearsal of a cell's method with its options."""
    content = {
        "method": cell["method"],
        "code": cell["code"],
        "options": _rehearsed(cell),
        "batch_size": cell["batch_size"],
        **cell["rehearsal"],
    }
    return models / f"{cell['model']}.rehearsal-{content_key(content)}.safetensors"


def store_rehearsal(run: RunPlan, models: Path) -> str:
    """Rehearse the method of a run that asks for it, unless the file is there; a damaged file is replaced.

    Returns a sentence that says so, or an empty one.
    """
    found, remark = _stored(run.any_cell, models)
    if found is None:
        trained = read_source_model(model_path(models, run.model.key), pick_device())
        rehearsed_source(run.any_cell, run.model, trained, models)
    return remark


def _stored(cell: Cell, models: Path) -> tuple[SourceStatistics | None, str]:
    """The statistics in the file of a cell's rehearsal, if it is whole; a sentence if it is damaged."""
    try:
        found = SourceStatistics.load(rehearsal_path(models, cell))
    except FileNotFoundError:
        return None, ""
    except StateError as error:
        return None, f"{error}; {cell['method']} is rehearsed again"
    return (found if cell["method"] in found.rehearsals else None), ""


def _made(cell: Cell, plan: ModelPlan, trained: TrainedModel) -> SourceStatistics:
    held = held_out_images(plan)
    if len(held) < FEWEST_SAMPLES:
        raise RehearsalError(
            f"expected at least {FEWEST_SAMPLES} held-out images to rehearse {cell['method']} with, got "
            f"{len(held)}: a tenth of the source images is held out; a higher --limit, or none, leaves more"
        )
    # Chosen here, so that only the images that are used are converted to floats.
    size = cell["rehearsal"]
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(plan.seed))[: size["images"]]
    loader = (
        (images.pixels.float(), images.labels) for images in map(held.select, order.split(MEASURE_BATCH))
    )
    # A method may draw random numbers: the run itself must not depend on whether the file was there.
    with seeded(plan.key, cell["method"], "rehearsal"):
        return rehearse(
            trained.model,
            loader,
            method=cell["method"],
            source=trained.source,
            samples=size["images"],
            shifts=size["shifts"],
            batch_size=cell["batch_size"],
            seed=plan.seed,
            check_held_out=False,  # of the data set that the model was trained on, however small
            progress=False,
            **_rehearsed(cell),
        )


def _rehearsed(cell: Cell) -> dict[str, Any]:
    options = untempered_options(cell)
    return {name: value for name, value in options.items() if name not in _NOT_REHEARSED}
