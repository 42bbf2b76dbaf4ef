"""A recipe as a plan: the streams and the models to train, their runs, and the cells of each run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from equipoise.errors import RecipeError
from equipoise.factory import options_of
from equipoise.research.data.cache import Stored
from equipoise.research.data.dataset import DataSet, Origin, Shift
from equipoise.research.data.image_stream import IMAGE_KINDS, ImageKindName
from equipoise.research.experiment.provenance import (
    code_digest,
    content_key,
    order_digest,
    resolved_options,
)
from equipoise.research.experiment.recipe import Recipe, TraceKind, Training
from equipoise.research.experiment.schema import REHEARSED, Cell, RehearsalSize
from equipoise.research.models import InitialWeights, weights_digest
from equipoise.streams import Segment

_FORMAT = 3
"""Goes up when training or adapting changes so that older results no longer hold."""
_PERMUTED: tuple[ImageKindName, ...] = ("shuffled", "sorted", "recorded", "mixed")
"""The orders that were there before others: their keys are as they were."""


@dataclass(frozen=True)
class StreamPlan:
    """The stream of a run: that of one shift, or those of several shifts joined."""

    target: str
    tier: int | None
    sources: tuple[str, ...]
    streams: tuple[str, ...]
    domains: tuple[str, ...]
    """The names of the streams that are joined."""


def joined_shifts(shifts: Sequence[Shift], order: ImageKindName, targets: int) -> list[StreamPlan]:
    """The streams of the models: each shift by itself, or all shifts of a model at once.

    Joined are the targets of a model and tier or, for "gradual", the tiers of a model and target, or of each
    of its corruptions. Joined targets are named "all" if they are all `targets` of the data set, else by
    their names.
    """
    corrupted = any(shift.corruption for shift in shifts)
    if order == "changing":  # corrupts images by itself
        if not corrupted and any(shift.tier is not None for shift in shifts):
            raise RecipeError(
                "order: 'changing' corrupts images as they are, and the streams of this data set have none"
            )
        shifts = list({s.stream: replace(s, tier=None) for s in shifts if not s.corruption}.values())
    if order == "gradual" and corrupted:  # an image as it is has no tiers
        shifts = [shift for shift in shifts if shift.corruption]
    if IMAGE_KINDS[order].alone:
        return [StreamPlan(s.domain, s.tier, s.sources, (s.stream,), (s.domain,)) for s in shifts]
    groups: dict[tuple[tuple[str, ...], int | str | None], list[Shift]] = {}
    for shift in shifts:
        groups.setdefault((shift.sources, shift.domain if order == "gradual" else shift.tier), []).append(
            shift
        )
    if IMAGE_KINDS[order].joins and any(len(group) < 2 for group in groups.values()):
        if order == "gradual":
            raise RecipeError(
                "order: 'gradual' joins all tiers of one target, and here a target has only one: name at "
                "least two `tiers` of a data set that has them"
            )
        raise RecipeError(
            f"order: {order!r} joins all targets of one model, and here a model has only one: "
            "leave-one-out data sets train a model for each target; use 'shuffled' or 'sorted'"
        )
    return [_joined(group, order, targets) for group in groups.values()]


def _joined(group: Sequence[Shift], order: ImageKindName, targets: int) -> StreamPlan:
    streams, first = tuple(shift.stream for shift in group), group[0]
    if order == "gradual":
        tiers = tuple(f"tier {shift.tier}" for shift in group)
        return StreamPlan(first.domain, None, first.sources, streams, tiers)
    several = list(dict.fromkeys(shift.target for shift in group))
    target = "all" if len(several) == targets > 1 else "+".join(several)
    corrupted = len(several) == 1 and len(group) > 1
    names = tuple((shift.corruption or "as it is") if corrupted else shift.domain for shift in group)
    return StreamPlan(target, first.tier, first.sources, streams, names)


def resolved_order_options(order: ImageKindName, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind of stream, defaults included; RecipeError for one that it does not have."""
    known = [field.name for field in fields(IMAGE_KINDS[order])]
    if unknown := [name for name in given if name not in known]:
        raise RecipeError(
            f"order_options: no {', '.join(unknown)} of {order!r} streams; there are "
            f"{', '.join(known) or 'none'}"
        )
    return asdict(IMAGE_KINDS[order](**given))


def stream_digest(order: ImageKindName, streams: Sequence[Stored]) -> str:
    """A hash of the images of a stream and, for orders that are no plain permutation, of their code."""
    code = {} if order in _PERMUTED else {"order": order_digest()}
    return content_key({"parts": [part.digest for part in streams], **code})


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

    def rehearsed(self) -> "RunPlan":
        """The run with its cells of the tempering "rehearsed" alone."""
        return self.without(key for key, cell in self.cells.items() if cell["tempering"] != REHEARSED)

    @property
    def stream_key(self) -> str:
        """The key of a model on a stream with a range of t."""
        cell = self.any_cell
        t = [cell["options"]["t_min"], cell["options"]["t_max"]]
        content: dict[str, Any] = {"model": cell["model"], "stream": cell["stream"], "t": t}
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
        digest = stream_digest(recipe.order, streams)
        traced = stream.streams if recipe.trace == "batches" else ()
        segments = tuple(segment for part in traced for segment in data_set.segments(part, limit))
        # Images of a changing stream are corrupted when they are gathered.
        made = recipe.order == "changing" or any(data_set.origin(p) == "made" for p in stream.streams)
        runs += [
            RunPlan(
                model,
                tuple(part.path for part in streams),
                stream.domains,
                _cells(recipe, label, model, stream, digest, "made" if made else "official", limit),
                own_range=bool(method.options.keys() & {"t_min", "t_max"}),
                left_out=sum(len(part.problems) for part in (*sources, *streams)),
                trace=recipe.trace,
                segments=segments,
            )
            for label, method in recipe.methods.items()
        ]
    # The sort keeps the order of the recipe within a model: TinyImageNet-C has one for all its shifts.
    place = {key: at for at, key in enumerate(dict.fromkeys(run.model.key for run in runs))}
    return sorted(runs, key=lambda run: place[run.model.key])


def _cells(
    recipe: Recipe,
    label: str,
    model: ModelPlan,
    stream: StreamPlan,
    digest: str,
    origin: Origin,
    limit: int | None,
) -> dict[str, Cell]:
    """The cells of a method on a stream, each protocol with each tempering, by their keys."""
    method, backbone = recipe.methods[label], recipe.backbones[model.backbone]
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
            stream=digest,
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
