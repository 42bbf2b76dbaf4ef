"""A recipe as a plan: the models to train, their runs, and the cells of each run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from equipoise.factory import options_of
from equipoise.research.data.cache import Stored
from equipoise.research.data.dataset import DataSet, Origin, Shift
from equipoise.research.experiment.keys import content_key
from equipoise.research.experiment.provenance import code_digest, resolved_options
from equipoise.research.experiment.recipe import Recipe
from equipoise.research.experiment.recipe_parts import BackboneRecipe, MethodRecipe, TraceKind, Training
from equipoise.research.experiment.schema import REHEARSED, Cell, RehearsalSize
from equipoise.research.experiment.stream_plan import (
    StreamPlan,
    joined_shifts,
    resolved_order_options,
    stream_digest,
)
from equipoise.research.models.backbones import InitialWeights, weights_digest
from equipoise.streams import Segment

_FORMAT = 3
"""Goes up when training or adapting changes so that older results no longer hold."""


@dataclass(frozen=True)
class ModelPlan:
    """A source model: trained once, and shared by every run on it."""

    key: str
    name: str
    backbone: str
    data: str
    classes: tuple[str, ...]
    trained_on: tuple[str, ...]
    targets: tuple[str, ...]
    seed: int
    sources: tuple[Path, ...]
    training: Training
    input_size: int | None
    weights: InitialWeights


@dataclass(frozen=True)
class RunPlan:
    """One pass of a method over a stream, scored for several cells: each protocol with each tempering."""

    model: ModelPlan
    streams: tuple[Path, ...]
    domains: tuple[str, ...]
    """The name of each of the streams."""
    cells: Mapping[str, Cell]
    own_range: bool
    """Whether the method sets its own range of t, so that this run must not summarise the stream."""
    left_out: int
    """The files of the stream and of the training images that could not be read and were left out."""
    trace: TraceKind | None
    """Whether results have the stream over time: each batch and segment, or bins of images."""
    segments: tuple[Segment, ...]
    """The segments of a recorded stream."""

    @property
    def any_cell(self) -> Cell:
        """One of the cells; they differ in protocol and tempering alone."""
        return next(iter(self.cells.values()))

    def without(self, done: Iterable[str]) -> "RunPlan":
        """The run with the cells that are still to do."""
        there = frozenset(done)
        left = {key: cell for key, cell in self.cells.items() if key not in there}
        return replace(self, cells=left)

    @property
    def stream_key(self) -> str:
        """The key of a model on a stream with a range of t."""
        cell = self.any_cell
        options = cell["options"]
        content: dict[str, Any] = {
            "model": cell["model"],
            "stream": cell["stream"],
            "t": [options["t_min"], options["t_max"]],
        }
        if "order_options" in cell:
            content |= {"order": cell["order"], "order_options": cell["order_options"]}
        return content_key(content)


def make_plan(
    recipe: Recipe,
    data_set: DataSet,
    shifts: Sequence[Shift],
    stored: Mapping[str, Stored],
    weights: Mapping[str, InitialWeights],
    limit: int | None,
    domains: Mapping[str, Stored] | None = None,
) -> list[RunPlan]:
    """Every run of a recipe, those of one model and then of one stream next to each other.

    `domains` are the parts of the streams, where these have fewer images of a part than the training.
    """
    targets = len({shift.target for shift in data_set.shifts})
    starts = {name: weights_digest(path, name) for name, path in weights.items()}
    runs = []
    for seed, (name, backbone), stream in product(
        recipe.seeds, recipe.backbones.items(), joined_shifts(shifts, recipe.order, targets)
    ):
        sources = [stored[part] for part in stream.sources]
        model = ModelPlan(
            key=content_key(
                {
                    "format": _FORMAT,
                    "backbone": name,
                    "start": starts[name],
                    "classes": len(data_set.classes),
                    "seed": seed,
                    "sources": [part.digest for part in sources],
                    "training": recipe.training.model_dump(),
                    "input_size": backbone.input_size,
                }
            ),
            name=f"{name} on {' + '.join(stream.sources)}, seed {seed}",
            backbone=name,
            data=recipe.data,
            classes=tuple(data_set.classes),
            trained_on=stream.sources,
            targets=tuple(dict.fromkeys(s.target for s in data_set.shifts if s.sources == stream.sources)),
            seed=seed,
            sources=tuple(part.path for part in sources),
            training=recipe.training,
            input_size=backbone.input_size,
            weights=weights[name],
        )
        streams = [(domains or stored)[part] for part in stream.streams]
        # Images of a changing stream are corrupted when they are gathered.
        made = recipe.order == "changing" or any(data_set.origin(p) == "made" for p in stream.streams)
        runs += [
            RunPlan(
                model,
                tuple(part.path for part in streams),
                stream.domains,
                _cells(
                    recipe,
                    model,
                    stream,
                    backbone,
                    label,
                    method,
                    streams,
                    "made" if made else "official",
                    limit,
                ),
                own_range=bool(method.options.keys() & {"t_min", "t_max"}),
                left_out=sum(len(part.problems) for part in (*sources, *streams)),
                trace=recipe.trace,
                segments=_segments(data_set, stream, limit) if recipe.trace == "batches" else (),
            )
            for label, method in recipe.methods.items()
        ]
    # The sort keeps the order of the recipe within a model: TinyImageNet-C has one for all its shifts.
    place = {key: at for at, key in enumerate(dict.fromkeys(run.model.key for run in runs))}
    return sorted(runs, key=lambda run: place[run.model.key])


def _cells(
    recipe: Recipe,
    model: ModelPlan,
    stream: StreamPlan,
    backbone: BackboneRecipe,
    label: str,
    method: MethodRecipe,
    streams: Sequence[Stored],
    origin: Origin,
    limit: int | None,
) -> dict[str, Cell]:
    name = method.method or label
    # A method that draws random numbers of its own draws others for every seed.
    seed = {"seed": model.seed} if "seed" in options_of(name) else {}
    given: dict[str, Any] = {**seed, "t_min": backbone.t_min, "t_max": backbone.t_max, **method.options}
    options = resolved_options(name, given)
    code = code_digest(name, options)
    # A method that is not rehearsed has no cell of that tempering.
    temperings = [kind for kind in recipe.temperings if kind != REHEARSED or method.rehearsed]
    cells = [
        Cell(
            data=recipe.data,
            backbone=model.backbone,
            target=stream.target,
            tier=stream.tier,
            seed=model.seed,
            label=label,
            method=name,
            code=code,
            options=options,
            tempering=tempering,
            protocol=protocol,
            batch_size=recipe.batch_size or method.batch_size,
            order=recipe.order,
            origin=origin,
            limit=limit,
            epochs=recipe.training.epochs,
            input_size=backbone.input_size,
            model=model.key,
            stream=stream_digest(recipe.order, streams),
        )
        for protocol, tempering in product(recipe.protocols, temperings)
    ]
    of_order = resolved_order_options(recipe.order, recipe.order_options)
    for cell in cells:
        if of_order:
            cell["order_options"] = of_order
        if recipe.domain_images is not None:
            cell["domain_images"] = recipe.domain_images
        if cell["tempering"] == REHEARSED:
            cell["rehearsal"] = RehearsalSize(images=recipe.rehearsal.images, shifts=recipe.rehearsal.shifts)
    # Keys of results with each batch are as they were before there were bins.
    traced = {"trace": recipe.trace == "batches" or recipe.trace} if recipe.trace else {}
    return {content_key({**cell, "format": _FORMAT, **traced}): cell for cell in cells}


def _segments(data_set: DataSet, stream: StreamPlan, limit: int | None) -> tuple[Segment, ...]:
    """The segments of a stream, one part after the other."""
    return tuple(segment for part in stream.streams for segment in data_set.segments(part, limit))
