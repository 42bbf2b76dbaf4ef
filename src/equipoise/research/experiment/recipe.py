"""An experiment as data: a YAML file with the data set, the training, the methods and the scores."""

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from equipoise.errors import DataError, RecipeError
from equipoise.factory import options_of
from equipoise.registry import list_methods
from equipoise.rehearsal.labelled import FEWEST_SAMPLES
from equipoise.rehearsal.shifts import FEWEST_SHIFTS
from equipoise.research.data.corrupted import corrupted_version
from equipoise.research.data.image_stream import ImageKindName
from equipoise.research.experiment.schema import REHEARSED, Protocol

_SHIPPED = "equipoise.research.recipes"
_Entry = TypeVar("_Entry")
_Model = TypeVar("_Model", bound=BaseModel)


RecipeTempering = Literal["none", "mean", "median", "sample", "agreement", "rehearsed", "fixed"]
"""The divisor of raw logits; "fixed" is the one temperature with the least ECE on the source."""

TraceKind = Literal["batches", "bins"]
"""A stream over time in results: each batch, or bins of images."""

Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Strict(BaseModel):
    """A part of a recipe: no unknown entries, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Training(Strict):
    """Training of the source models."""

    epochs: Positive
    optimizer: Literal["adam", "rmsprop"]
    learning_rate: Annotated[float, Field(gt=0)]
    batch_size: Annotated[int, Field(ge=2)]  # one image has no batch statistics to normalise it by


class BackboneRecipe(Strict):
    """A network of the experiment.

    Attributes:
        weights: "imagenet" (a file of the name in DATA/weights, else timm's hub) or "random".
        input_size: the side that images are resized to inside the model; None: that of the data set.
        t_min: lower end of the certainty regulariser's range, for methods that do not set their own.
        t_max: its upper end.
    """

    weights: Literal["imagenet", "random"] = "imagenet"
    input_size: Positive | None = None
    t_min: Annotated[float, Field(gt=0)] = 1.0
    t_max: Annotated[float, Field(gt=0)] = 3.0

    @model_validator(mode="after")
    def _ordered(self) -> "BackboneRecipe":
        if self.t_min > self.t_max:
            raise ValueError(f"expected t_min <= t_max, got {self.t_min} and {self.t_max}")
        return self


class MethodRecipe(Strict):
    """A method of the experiment: the registry's name where it is not the entry's, and its options.

    Attributes:
        method: its name in the registry; empty: that of the entry.
        batch_size: of the stream, and of a rehearsal; not used where the recipe has one for all methods.
        rehearsed: whether it is rehearsed on held-out source images, for the tempering "rehearsed"; None: in
            recipes of streams alone.
        options: the arguments of its class.
    """

    method: str = ""
    batch_size: Positive = 50
    rehearsed: bool | None = None
    options: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _numbers_are_numbers(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, value in options.items():
            if isinstance(value, str) and _looks_like_a_number(value):
                raise ValueError(f"YAML takes {name}: {value} for text; write a dot, as in 1.0e-4")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"expected {name} as a finite number")
        return options


class RehearsalRecipe(Strict):
    """The size of rehearsals.

    Attributes:
        images: the most held-out source images.
        shifts: the number of made-up shifts; None: all. 16 are nearly as good.
    """

    images: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 2000
    shifts: Annotated[int, Field(ge=FEWEST_SHIFTS)] | None = None


def _looks_like_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class ScoredStreams(Strict):
    """The fields of streams and scores that both kinds of recipes have.

    Attributes:
        about: one line for `equipoise recipes`.
        order: the kind of the streams; "mixed", "continual" and others join all targets of one model,
            "recorded" keeps the order of the data set.
        order_options: of that kind, as `passes` of "recurring".
        domain_images: the most images of each domain of a stream; None: all. Training has all.
        protocols: the answers that are scored.
        temperings: the divisors of the logits; "rehearsed" is for methods with `rehearsed: true`.
    """

    about: str
    order: ImageKindName
    order_options: dict[str, JsonValue] = Field(default_factory=dict)
    domain_images: Positive | None = None
    protocols: tuple[Protocol, ...]
    temperings: tuple[RecipeTempering, ...]

    @field_validator("seeds", "protocols", "temperings", check_fields=False)
    @classmethod
    def _each_once(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values == ():
            raise ValueError("expected at least one")
        return values and tuple(dict.fromkeys(values))


class Recipe(ScoredStreams):
    """A whole experiment.

    Attributes:
        data: the data set's name.
        modules: Python files, beside the recipe, that define further methods or data sets.
        seeds: each trains its own models and shuffles its own streams.
        tiers: only these, of a data set with tiers; empty: all.
        batch_size: of the streams, for every method; None: each method has its own.
        trace: whether results have the stream over time: "batches" (or true), the figures of each batch and
            of each segment; "bins", those of bins of images, for long streams.
        training: of the source models.
        rehearsal: of the methods with `rehearsed: true`.
        backbones: the networks by name.
        methods: the methods by their label in the results.
        stream_methods: further ones, for the recipes of streams on this data set alone.
    """

    data: str
    modules: tuple[str, ...] = ()
    seeds: tuple[Seed, ...] = (0, 1, 2)
    order: ImageKindName = "shuffled"
    tiers: tuple[Positive, ...] = ()
    batch_size: Positive | None = None
    trace: TraceKind | None = None
    protocols: tuple[Protocol, ...] = ("online", "after-pass")
    temperings: tuple[RecipeTempering, ...] = get_args(RecipeTempering)
    training: Training
    rehearsal: RehearsalRecipe = RehearsalRecipe()
    backbones: dict[str, BackboneRecipe] = Field(min_length=1)
    methods: dict[str, MethodRecipe] = Field(min_length=1)
    stream_methods: dict[str, MethodRecipe] = Field(default_factory=dict)

    @field_validator("trace", mode="before")
    @classmethod
    def _yes_is_batches(cls, trace: Any) -> Any:
        return ("batches" if trace else None) if isinstance(trace, bool) else trace

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
        return _validated(Recipe, {**dict(self), **changes}, "")


class StreamRecipe(ScoredStreams):
    """A kind of stream, to run on the data set of another recipe: training, networks and methods are its own.

    The domains of the stream are the corruptions of each target, where the data set has a version with these.
    Methods are rehearsed unless they say `rehearsed: false`, so that each has an estimate of its accuracy.

    Attributes:
        on: the recipe of the data set; a file is looked for beside this one.
        tiers: of the corruptions that the stream consists of; each is a stream.
        batch_size: of the stream, for every method: a deployed stream has one, whichever method meets it.
        seeds: as in `Recipe`; None: those of the other recipe.
        rehearsal: its size.
        trace: the stream over time.
    """

    on: str
    tiers: tuple[Positive, ...] = (5,)
    batch_size: Positive = 64
    seeds: tuple[Seed, ...] | None = None
    rehearsal: RehearsalRecipe = RehearsalRecipe(images=500, shifts=16)
    trace: TraceKind = "bins"
    protocols: tuple[Protocol, ...] = ("online",)
    temperings: tuple[RecipeTempering, ...] = ("none", "rehearsed")

    def applied(self, base: Recipe) -> Recipe:
        """The experiment on the data set of a recipe."""
        methods = {**base.methods, **base.stream_methods}
        own = {name: value for name, value in self if name not in ("on", "seeds")}
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
    shipped = (entry.name for entry in files(_SHIPPED).iterdir())
    return sorted(name.removesuffix(".yaml") for name in shipped if name.endswith(".yaml"))


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
    return files(_SHIPPED).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


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
