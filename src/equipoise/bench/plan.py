"""A recipe written out: which models are trained, which runs they make, and which cells come of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from itertools import product
from pathlib import Path
from typing import Any

from equipoise.bench.keys import content_key
from equipoise.bench.lines import Cell
from equipoise.bench.recipe import REHEARSED, BackboneRecipe, MethodRecipe, Recipe, Training
from equipoise.data.cache import Stored
from equipoise.data.dataset import DataSet, Origin, Shift
from equipoise.errors import RecipeError
from equipoise.models.backbones import Weights, weights_digest
from equipoise.network.layout import RUN_BY
from equipoise.registry import code_digest, options_of

_FORMAT = 2
"""Goes up when training or adapting changes so that older results no longer hold."""

REHEARSAL_IMAGES = 2000
"""The most held-out source images that a method is rehearsed with."""


@dataclass(frozen=True)
class ModelPlan:
    """A source model: trained once, and shared by every run on it."""

    key: str
    name: str
    backbone: str
    num_classes: int
    seed: int
    sources: tuple[Path, ...]
    training: Training
    input_size: int | None
    weights: Weights


@dataclass(frozen=True)
class Joined:
    """What a model meets: one shift, or several joined to one stream."""

    target: str
    tier: int | None
    sources: tuple[str, ...]
    streams: tuple[str, ...]


@dataclass(frozen=True)
class RunPlan:
    """One pass of a method over a stream, which gives several cells: each protocol with each tempering."""

    model: ModelPlan
    streams: tuple[Path, ...]
    cells: Mapping[str, Cell]
    own_range: bool
    """Whether the method has a range of t of its own, and so is not the one to describe the stream."""

    @property
    def any_cell(self) -> Cell:
        """A cell of it; all agree on everything but protocol and tempering."""
        return next(iter(self.cells.values()))

    def without(self, done: Iterable[str]) -> "RunPlan":
        """The run with the cells that are still to do."""
        there = frozenset(done)
        left = {key: cell for key, cell in self.cells.items() if key not in there}
        return replace(self, cells=left)

    @property
    def stream_key(self) -> str:
        """What tells one model on one stream, seen with one range of t, from another."""
        cell = self.any_cell
        options = cell["options"]
        return content_key(
            {"model": cell["model"], "stream": cell["stream"], "t": [options["t_min"], options["t_max"]]}
        )


def joined_shifts(shifts: Sequence[Shift], order: str, targets: int) -> list[Joined]:
    """What the models meet: each shift by itself, or all targets of a model and tier at once.

    Joined targets are called "all" if they are all that the data set has (`targets`), else by their names.
    """
    if order in ("shuffled", "sorted"):
        return [Joined(s.target, s.tier, s.sources, (s.stream,)) for s in shifts]
    groups: dict[tuple[tuple[str, ...], int | None], list[Shift]] = {}
    for shift in shifts:
        groups.setdefault((shift.sources, shift.tier), []).append(shift)
    if any(len(group) < 2 for group in groups.values()):
        raise RecipeError(
            f"order: {order!r} joins the targets that one model meets, and here a model meets only one: "
            "leave-one-out data sets train a model for each target; use 'shuffled' or 'sorted'"
        )
    return [
        Joined(
            "all" if len(group) == targets else "+".join(shift.target for shift in group),
            tier,
            sources,
            tuple(shift.stream for shift in group),
        )
        for (sources, tier), group in groups.items()
    ]


def make_plan(
    recipe: Recipe,
    data_set: DataSet,
    shifts: Sequence[Shift],
    stored: Mapping[str, Stored],
    weights: Mapping[str, Weights],
    limit: int | None,
) -> list[RunPlan]:
    """Every run of a recipe, those of one model and then of one stream next to each other."""
    num_classes = len(data_set.classes)
    targets = len({shift.target for shift in data_set.shifts})
    starts = {name: weights_digest(path, name) for name, path in weights.items()}
    runs = []
    for seed, (name, backbone), met in product(
        recipe.seeds, recipe.backbones.items(), joined_shifts(shifts, recipe.order, targets)
    ):
        sources = [stored[part] for part in met.sources]
        model = ModelPlan(
            key=content_key(
                {
                    "format": _FORMAT,
                    "backbone": name,
                    "start": starts[name],
                    "classes": num_classes,
                    "seed": seed,
                    "sources": [part.digest for part in sources],
                    "training": recipe.training.model_dump(),
                    "input_size": backbone.input_size,
                }
            ),
            name=f"{name} on {' + '.join(met.sources)}, seed {seed}",
            backbone=name,
            num_classes=num_classes,
            seed=seed,
            sources=tuple(part.path for part in sources),
            training=recipe.training,
            input_size=backbone.input_size,
            weights=weights[name],
        )
        streams = [stored[part] for part in met.streams]
        made = any(data_set.origin(part) == "made" for part in met.streams)
        runs += [
            RunPlan(
                model,
                tuple(part.path for part in streams),
                _cells(
                    recipe,
                    model,
                    met,
                    backbone,
                    label,
                    method,
                    streams,
                    "made" if made else "official",
                    limit,
                ),
                own_range=bool(method.options.keys() & {"t_min", "t_max"}),
            )
            for label, method in recipe.methods.items()
        ]
    # The sort keeps the order of the recipe within a model: TinyImageNet-C has one for all its shifts.
    place = {key: at for at, key in enumerate(dict.fromkeys(run.model.key for run in runs))}
    return sorted(runs, key=lambda run: place[run.model.key])


def _cells(
    recipe: Recipe,
    model: ModelPlan,
    met: Joined,
    backbone: BackboneRecipe,
    label: str,
    method: MethodRecipe,
    streams: Sequence[Stored],
    origin: Origin,
    limit: int | None,
) -> dict[str, Cell]:
    name = method.method or label
    # A result depends on the defaults, too, and on the code of a method that is not of this package; not on
    # what the method is run by.
    known = {option: value for option, value in options_of(name).items() if option not in RUN_BY}
    defaults = {option: value for option, value in known.items() if value is not Parameter.empty}
    rest = {"format": _FORMAT, "code": code_digest(name)}
    # A method that draws random numbers of its own draws others for every seed.
    seed = {"seed": model.seed} if "seed" in options_of(name) else {}
    options: dict[str, Any] = {**seed, "t_min": backbone.t_min, "t_max": backbone.t_max, **method.options}
    # A method that is not rehearsed has no cell of that tempering.
    temperings = [kind for kind in recipe.temperings if kind != REHEARSED or method.rehearsed]
    cells = [
        Cell(
            data=recipe.data,
            backbone=model.backbone,
            target=met.target,
            tier=met.tier,
            seed=model.seed,
            label=label,
            method=name,
            options=options,
            tempering=tempering,
            protocol=protocol,
            batch_size=method.batch_size,
            order=recipe.order,
            origin=origin,
            limit=limit,
            epochs=recipe.training.epochs,
            input_size=backbone.input_size,
            model=model.key,
            stream=content_key({"parts": [part.digest for part in streams]}),
        )
        for protocol, tempering in product(recipe.protocols, temperings)
    ]
    rehearsal = {"rehearsal": {"images": REHEARSAL_IMAGES}}
    return {
        content_key(
            {
                **cell,
                "options": {**defaults, **options},
                **rest,
                **(rehearsal if cell["tempering"] == REHEARSED else {}),
            }
        ): cell
        for cell in cells
    }
