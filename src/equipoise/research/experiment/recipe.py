"""An experiment as data: a YAML file with the data set, the training, the methods and the scores."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator

from equipoise.errors import DataError, RecipeError
from equipoise.factory import options_of
from equipoise.registry import list_methods
from equipoise.research.data.corrupted import corrupted_version
from equipoise.research.data.image_stream import ImageKindName
from equipoise.research.experiment.recipe_parts import (
    BackboneRecipe,
    MethodRecipe,
    Positive,
    RecipeTempering,
    RehearsalRecipe,
    Strict,
    TraceKind,
    Training,
)
from equipoise.research.experiment.schema import REHEARSED, Protocol

_Entry = TypeVar("_Entry")
_Model = TypeVar("_Model", bound=BaseModel)


class Recipe(Strict):
    """A whole experiment.

    Attributes:
        about: one line for `equipoise recipes`.
        data: the data set's name.
        modules: Python files, beside the recipe, that define further methods or data sets.
        seeds: each trains its own models and shuffles its own streams.
        order: the kind of the streams; "mixed", "continual" and others join all targets of one model,
            "recorded" keeps the order of the data set.
        order_options: of that kind, as `passes` of "recurring".
        tiers: only these, of a data set with tiers; empty: all.
        domain_images: the most images of each domain of a stream; None: all. Training has all.
        batch_size: of the streams, for every method; None: each method has its own.
        trace: whether results have the stream over time: "batches" (or true), the figures of each batch and
            of each segment; "bins", those of bins of images, for long streams.
        protocols: the answers that are scored.
        temperings: the divisors of the logits; "rehearsed" is for methods with `rehearsed: true`.
        training: of the source models.
        rehearsal: of the methods with `rehearsed: true`.
        backbones: the networks by name.
        methods: the methods by their label in the results.
        stream_methods: further ones, for the recipes of streams on this data set alone.
    """

    about: str
    data: str
    modules: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = (0, 1, 2)
    order: ImageKindName = "shuffled"
    order_options: dict[str, JsonValue] = Field(default_factory=dict)
    tiers: tuple[Positive, ...] = ()
    domain_images: Positive | None = None
    batch_size: Positive | None = None
    trace: TraceKind | None = None
    protocols: tuple[Protocol, ...] = ("online", "after-pass")
    temperings: tuple[RecipeTempering, ...] = (
        "none",
        "mean",
        "median",
        "sample",
        "agreement",
        "rehearsed",
        "fixed",
    )
    training: Training
    rehearsal: RehearsalRecipe = RehearsalRecipe()
    backbones: dict[str, BackboneRecipe] = Field(min_length=1)
    methods: dict[str, MethodRecipe] = Field(min_length=1)
    stream_methods: dict[str, MethodRecipe] = Field(default_factory=dict)

    @field_validator("trace", mode="before")
    @classmethod
    def _yes_is_batches(cls, trace: Any) -> Any:
        return {True: "batches", False: None}.get(trace, trace) if isinstance(trace, bool) else trace

    @field_validator("seeds", "protocols", "temperings")
    @classmethod
    def _each_once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("expected at least one")
        return tuple(dict.fromkeys(values))

    def check_methods(self) -> None:
        """Raise RecipeError for an unknown method or option; the recipe's modules must be loaded before."""
        for label, entry in self.methods.items():
            name = entry.method or label
            if name not in list_methods():
                raise RecipeError(f"methods: no method {name!r}; there are {', '.join(list_methods())}")
            known = options_of(name)
            for option in entry.options:
                if option not in known or option == "tempering":
                    raise RecipeError(
                        f"methods.{label}: no option {option!r} here; {name} has {', '.join(known)}; "
                        "`temperings` is set for all methods"
                    )
        if self.temperings == (REHEARSED,) and not any(entry.rehearsed for entry in self.methods.values()):
            raise RecipeError(
                "temperings: 'rehearsed' alone leaves no cell, as none of the methods has `rehearsed: true`"
            )

    def narrowed(
        self,
        *,
        methods: Sequence[str] = (),
        backbones: Sequence[str] = (),
        seeds: Sequence[int] = (),
        temperings: Sequence[str] = (),
        epochs: int | None = None,
        domain_images: int | None = None,
    ) -> "Recipe":
        """The recipe limited to these methods, backbones, …; arguments that are empty or None change nothing.

        Registered methods that are not in the recipe get their defaults, and backbones that are not in it the
        settings of its first one.
        """
        changes: dict[str, Any] = {}
        if methods:
            registered = {name: MethodRecipe() for name in list_methods()}
            known = {**registered, **self.stream_methods, **self.methods}
            changes["methods"] = _picked("method", methods, known)
        if backbones:
            new = {name: next(iter(self.backbones.values())) for name in backbones}
            changes["backbones"] = _picked("backbone", backbones, {**new, **self.backbones})
        if seeds:
            changes["seeds"] = tuple(seeds)
        if temperings:
            changes["temperings"] = tuple(temperings)
        if epochs is not None:
            changes["training"] = {**self.training.model_dump(), "epochs": epochs}
        if domain_images is not None:
            changes["domain_images"] = domain_images
        return _validated(
            Recipe, {**{name: getattr(self, name) for name in type(self).model_fields}, **changes}, ""
        )


class StreamRecipe(Strict):
    """A kind of stream, to run on the data set of another recipe: training, networks and methods are its own.

    The domains of the stream are the corruptions of each target, where the data set has a version with these.
    Methods are rehearsed unless they say `rehearsed: false`, so that each has an estimate of its accuracy.

    Attributes:
        about: one line for `equipoise recipes`.
        on: the recipe of the data set; a file is looked for beside this one.
        order: the kind of the stream.
        order_options: of that kind.
        tiers: of the corruptions that the stream consists of; each is a stream.
        domain_images: the most images of each domain, so of each corruption.
        batch_size: of the stream, for every method: a deployed stream has one, whichever method meets it.
        seeds: as in `Recipe`; None: those of the other recipe.
        rehearsal: its size.
        trace: the stream over time.
        protocols: the answers that are scored.
        temperings: the divisors of the logits.
    """

    about: str
    on: str
    order: ImageKindName
    order_options: dict[str, JsonValue] = Field(default_factory=dict)
    tiers: tuple[Positive, ...] = (5,)
    domain_images: Positive | None = None
    batch_size: Positive = 64
    seeds: tuple[int, ...] | None = None
    rehearsal: RehearsalRecipe = RehearsalRecipe(images=500, shifts=16)
    trace: TraceKind = "bins"
    protocols: tuple[Protocol, ...] = ("online",)
    temperings: tuple[RecipeTempering, ...] = ("none", "rehearsed")

    def applied(self, base: Recipe) -> Recipe:
        """The experiment on the data set of a recipe."""
        methods = {**base.methods, **base.stream_methods}
        own = {name: getattr(self, name) for name in type(self).model_fields if name not in ("on", "seeds")}
        rehearsed = {
            label: entry.model_copy(update={"rehearsed": entry.rehearsed is not False})
            for label, entry in methods.items()
        }
        seeds = base.seeds if self.seeds is None else self.seeds
        changes = {"data": _corrupted(base.data), "seeds": seeds, "methods": rehearsed}
        return base.model_copy(update={**own, **changes})


def _corrupted(data: str) -> str:
    """The version of a data set with corruptions; itself if there is none, as for one of the user's own."""
    try:
        return corrupted_version(data)
    except DataError:
        return data


def list_recipes() -> list[str]:
    """Names of the recipes that come with equipoise."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _shipped() if entry.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe: one that comes with equipoise, or a file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: not a readable recipe: {error}") from error
    if name not in list_recipes():
        raise RecipeError(
            f"no recipe {name!r}; there are {', '.join(list_recipes())}, or give the path of a .yaml file"
        )
    return files("equipoise.research.recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load_recipe(name: str, on: str | None = None) -> Recipe:
    """A recipe by name or path, validated; RecipeError names each wrong entry and the reason.

    Args:
        name: of a recipe that comes with equipoise, or the path of one.
        on: the recipe of the data set, for a recipe of a stream, in place of its own `on`.
    """
    content, folder = _content(name), Path(name).resolve().parent
    if "on" not in content:
        if on is not None:
            raise RecipeError(f"--on: {name} is no recipe of a stream, and has a data set of its own")
        recipe = _validated(Recipe, content, f"{name}: ")
        return recipe.model_copy(update={"modules": tuple(str(folder / module) for module in recipe.modules)})
    stream = _validated(StreamRecipe, content, f"{name}: ")
    beside = stream.on if stream.on in list_recipes() else str(folder / stream.on)
    base = on or beside
    if "on" in _content(base):
        raise RecipeError(
            f"{name}: expected the recipe of a data set to run on, got that of a stream: {base}"
        )
    return stream.applied(load_recipe(base))


def _content(name: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(recipe_text(name))
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{name}: expected a mapping with data, training, …, got {type(content).__name__}")
    # YAML 1.1 reads the key `on` as true.
    return {"on" if key is True else key: value for key, value in content.items()}


def _shipped() -> list[Any]:
    return list(files("equipoise.research.recipes").iterdir())


def _picked(kind: str, names: Sequence[str], known: dict[str, _Entry]) -> dict[str, _Entry]:
    for name in names:
        if name not in known:
            raise RecipeError(f"no {kind} {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in names}


def _validated(kind: type[_Model], content: dict[str, Any], prefix: str) -> _Model:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, entry['loc'])) or 'recipe'}: {entry['msg']}, got {entry['input']!r:.80}"
            for entry in error.errors()
        ]
        raise RecipeError(prefix + "; ".join(wrong)) from error
