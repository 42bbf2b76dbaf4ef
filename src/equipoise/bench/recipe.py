"""An experiment as data: a YAML file with the data set, the training, the methods and the scores."""

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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

from equipoise.bench.schema import REHEARSED, Protocol
from equipoise.data.streams import Order
from equipoise.errors import RecipeError
from equipoise.factory import options_of
from equipoise.registry import list_methods
from equipoise.rehearsing.labelled import FEWEST_SAMPLES
from equipoise.rehearsing.rehearse import FEWEST_SHIFTS

RecipeTempering = Literal["none", "mean", "median", "sample", "agreement", "rehearsed", "fixed"]
"""The divisor of raw logits; "fixed" is the one temperature with the least ECE on the source."""

_Positive = Annotated[int, Field(gt=0)]
_Entry = TypeVar("_Entry")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Training(_Strict):
    """Training of the source models."""

    epochs: _Positive
    optimizer: Literal["adam", "rmsprop"]
    learning_rate: Annotated[float, Field(gt=0)]
    batch_size: Annotated[int, Field(ge=2)]  # one image has no batch statistics to normalise it by


class BackboneRecipe(_Strict):
    """A network of the experiment.

    Attributes:
        weights: "imagenet" (a file of the name in DATA/weights, else timm's hub) or "random".
        input_size: the side that images are resized to inside the model; None: that of the data set.
        t_min: lower end of the certainty regulariser's range, for methods that do not set their own.
        t_max: its upper end.
    """

    weights: Literal["imagenet", "random"] = "imagenet"
    input_size: _Positive | None = None
    t_min: Annotated[float, Field(gt=0)] = 1.0
    t_max: Annotated[float, Field(gt=0)] = 3.0

    @model_validator(mode="after")
    def _ordered(self) -> "BackboneRecipe":
        if self.t_min > self.t_max:
            raise ValueError(f"expected t_min <= t_max, got {self.t_min} and {self.t_max}")
        return self


class MethodRecipe(_Strict):
    """A method of the experiment: the registry's name where it is not the entry's, and its options.

    Attributes:
        method: its name in the registry; empty: that of the entry.
        batch_size: of the stream, and of a rehearsal.
        rehearsed: whether it is rehearsed on held-out source images, for the tempering "rehearsed".
        options: the arguments of its class.
    """

    method: str = ""
    batch_size: _Positive = 50
    rehearsed: bool = False
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


class RehearsalRecipe(_Strict):
    """The size of rehearsals.

    Attributes:
        images: the most held-out source images.
        shifts: the number of made-up shifts; None: all. 16 are nearly as good.
    """

    images: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 2000
    shifts: Annotated[int, Field(ge=FEWEST_SHIFTS)] | None = None


class Recipe(_Strict):
    """A whole experiment.

    Attributes:
        about: one line for `equipoise recipes`.
        data: the data set's name.
        modules: Python files, beside the recipe, that define further methods or data sets.
        seeds: each trains its own models and shuffles its own streams.
        order: of the streams; "mixed" and "continual" join all targets of one model, "recorded" keeps the
            order of the data set.
        trace: whether results have the figures of each batch and of each segment of the stream.
        protocols: the answers that are scored.
        temperings: the divisors of the logits; "rehearsed" is for methods with `rehearsed: true`.
        training: of the source models.
        rehearsal: of the methods with `rehearsed: true`.
        backbones: the networks by name.
        methods: the methods by their label in the results.
    """

    about: str
    data: str
    modules: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = (0, 1, 2)
    order: Order = "shuffled"
    trace: bool = False
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
    ) -> "Recipe":
        """The recipe limited to these methods, backbones, …; arguments that are empty or None change nothing.

        Registered methods that are not in the recipe get their defaults, and backbones that are not in it the
        settings of its first one.
        """
        changes: dict[str, Any] = {}
        if methods:
            registered = {name: MethodRecipe() for name in list_methods()}
            changes["methods"] = _picked("method", methods, {**registered, **self.methods})
        if backbones:
            new = {name: next(iter(self.backbones.values())) for name in backbones}
            changes["backbones"] = _picked("backbone", backbones, {**new, **self.backbones})
        if seeds:
            changes["seeds"] = tuple(seeds)
        if temperings:
            changes["temperings"] = tuple(temperings)
        if epochs is not None:
            changes["training"] = {**self.training.model_dump(), "epochs": epochs}
        return _validated({**{name: getattr(self, name) for name in type(self).model_fields}, **changes}, "")


def _looks_like_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    return files("equipoise.recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load_recipe(name: str) -> Recipe:
    """A recipe by name or path, validated; RecipeError names each wrong entry and the reason."""
    try:
        content = yaml.safe_load(recipe_text(name))
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{name}: expected a mapping with data, training, …, got {type(content).__name__}")
    recipe = _validated(content, f"{name}: ")
    folder = Path(name).resolve().parent
    return recipe.model_copy(update={"modules": tuple(str(folder / module) for module in recipe.modules)})


def _shipped() -> list[Any]:
    return list(files("equipoise.recipes").iterdir())


def _picked(kind: str, names: Sequence[str], known: dict[str, _Entry]) -> dict[str, _Entry]:
    for name in names:
        if name not in known:
            raise RecipeError(f"no {kind} {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in names}


def _validated(content: dict[str, Any], prefix: str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, entry['loc'])) or 'recipe'}: {entry['msg']}, got {entry['input']!r:.80}"
            for entry in error.errors()
        ]
        raise RecipeError(prefix + "; ".join(wrong)) from error
