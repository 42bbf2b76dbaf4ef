"""The parts of a recipe: training, networks, methods and rehearsals."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from equipoise.rehearsal.labelled import FEWEST_SAMPLES
from equipoise.rehearsal.shifts import FEWEST_SHIFTS

RecipeTempering = Literal["none", "mean", "median", "sample", "agreement", "rehearsed", "fixed"]
"""The divisor of raw logits; "fixed" is the one temperature with the least ECE on the source."""

TraceKind = Literal["batches", "bins"]
"""A stream over time in results: each batch, or bins of images."""

Positive = Annotated[int, Field(gt=0)]


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
