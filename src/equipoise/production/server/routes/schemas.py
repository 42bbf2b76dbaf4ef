"""Bodies of requests and responses as pydantic models: checks of the first, documentation of both."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from pydantic_core import to_json
from starlette.responses import Response

from equipoise.calibration.rehearsal import Estimate
from equipoise.production.server.inputs import NAME_PATTERN
from equipoise.production.server.interface import GuardEvent, Mode, Prediction

LARGEST_INTEGER = 2**53 - 1
"""The largest whole number that every JSON reader keeps exact."""

DEFAULT_STREAM = "default"

StreamName = Annotated[
    str, Query(pattern=NAME_PATTERN, description="The stream: a camera, a tenant, a line of a factory.")
]
StreamInPath = Annotated[str, Path(pattern=NAME_PATTERN, description="The stream.")]
ClassNumber = Annotated[StrictInt, Field(ge=0, le=LARGEST_INTEGER)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LabelsBody(_Body):
    """The labels of an earlier request, one for each of its rows."""

    request: Annotated[str, Field(min_length=1, max_length=128, description="The id in the prediction.")]
    labels: Annotated[list[ClassNumber], Field(min_length=1, fail_fast=True, description="Classes.")]


class RollbackBody(_Body):
    """The number of snapshots to go back by."""

    steps: Annotated[StrictInt, Field(ge=1, le=1000, description="Snapshots to go back by.")] = 1


class ModeBody(_Body):
    """The mode to change to."""

    mode: Annotated[
        Mode,
        Field(
            description="adapted: the adapter answers and learns. shadow: the source model answers, the "
            "adapter learns. hold: the adapter answers and learns nothing."
        ),
    ]


class PredictionResponse(BaseModel):
    """The answer to a batch."""

    request: Annotated[str, Field(description="The id by which labels can be sent later.")]
    stream: str
    classes: Annotated[list[int], Field(description="One a row; -1 where the row is not finite.")]
    probabilities: Annotated[
        list[list[float | None]], Field(description="Calibrated; null where the row is not finite.")
    ]
    temperature: float | None
    estimated_accuracy: Estimate | None
    answered_by: Literal["student", "source"]
    mode: Mode
    learned: bool
    reason: Annotated[str, Field(description="Why nothing was learned, or rows were set aside.")]


class SnapshotResponse(BaseModel):
    """A snapshot that was written or gone back to."""

    stream: str
    snapshot: str


class ChangeResponse(BaseModel):
    """A change that was made."""

    stream: str
    done: Literal["reset", "release", "adapted", "shadow", "hold"]


class StreamResponse(BaseModel):
    """A stream as it is now."""

    name: str
    mode: Mode
    resident: bool
    batches: int
    samples: int
    last_seen: float
    guard: str
    gauges: dict[str, float | None]
    events: list[GuardEvent]
    snapshots: list[str]


class HistoryRow(BaseModel):
    """A point of a stream's curves; null where there is no number."""

    model_config = ConfigDict(extra="allow")

    index: int
    time: float
    samples: int
    accuracy: float | None
    low: float | None
    high: float | None
    inside: bool | None
    source_accuracy: float | None
    confidence: float | None
    temperature: float | None
    entropy: float | None
    agreement: float | None
    histogram: Annotated[list[float | None] | None, Field(description="The share of each class.")]


class HealthResponse(BaseModel):
    """Whether the server runs, or takes requests."""

    status: Literal["ok", "ready", "not ready"]


class RefusalResponse(BaseModel):
    """The reason of a refusal; nothing has changed."""

    error: str


def prediction_fields(answer: Prediction) -> dict[str, Any]:
    """The fields of `PredictionResponse`."""
    names = {"accuracy": "estimated_accuracy"}
    fields = {names.get(name, name): value for name, value in vars(answer).items()}
    return fields | {"probabilities": answer.probabilities.tolist()}


def json_response(content: Any, status: int = 200) -> Response:
    """A response in JSON, dataclasses as objects; it has no NaN: null stands for it."""
    return Response(to_json(content, inf_nan_mode="null"), status, media_type="application/json")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route for its documentation."""
    return {status: {"model": RefusalResponse} for status in statuses}
