"""The routes: predictions, changes of a stream, and what is only read; with the bodies that come and go."""

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Path, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from pydantic_core import to_json
from starlette.responses import Response

from equipoise.core.given import ACCURACIES_ASKED, COVERAGES_ASKED
from equipoise.production.server.inputs import NAME_PATTERN
from equipoise.production.server.interface import (
    Asked,
    GuardEvent,
    LabelsTaken,
    Mode,
    Prediction,
    ServiceLike,
)
from equipoise.production.server.limits import DoorLimits
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.routes.access import WITH_INPUTS, Tokens, for_changing, for_reading
from equipoise.production.server.routes.metrics import DoorMetrics
from equipoise.production.server.routes.payloads import FORMATS, NPY, read_inputs
from equipoise.production.server.routes.refusals import JSON

LARGEST_INTEGER = 2**53 - 1
"""The largest whole number that every JSON reader keeps exact."""

DEFAULT_STREAM = "default"

StreamName = Annotated[
    str, Query(pattern=NAME_PATTERN, description="The stream: a camera, a tenant, a line of a factory.")
]
StreamInPath = Annotated[str, Path(pattern=NAME_PATTERN, description="The stream.")]
WantedCoverage = Annotated[
    float | None,
    Query(
        ge=COVERAGES_ASKED[0],
        le=COVERAGES_ASKED[1],
        description="Answer with prediction sets that have the true class with this probability.",
    ),
]
WantedAccuracy = Annotated[
    float | None,
    Query(
        ge=ACCURACIES_ASKED[0],
        le=ACCURACIES_ASKED[1],
        description="Answer with the rows to act upon, so that this share of them is right.",
    ),
]
ClassNumber = Annotated[StrictInt, Field(ge=0, le=LARGEST_INTEGER)]

DECODED_AT_ONCE = 4
"""Bodies that are decoded at the same time: more only take memory from each other."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "additionalProperties": False,
                    "properties": {
                        "inputs": {
                            "type": "array",
                            "minItems": 1,
                            "items": {},
                            "description": "Rows: nested lists of numbers, all of one shape.",
                        }
                    },
                },
                "example": {"inputs": [[0.5, 1.5], [0.25, 2.0]]},
            },
            NPY: _BINARY,
            **dict.fromkeys(FORMATS, _BINARY),
        },
    }
}

Since = Annotated[int, Query(ge=0, le=LARGEST_INTEGER, description="Only rows with a larger index.")]


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


class AccuracyResponse(BaseModel):
    """The accuracy of the answers, estimated without labels, with a 90 % interval."""

    value: float
    low: float
    high: float
    inside: Annotated[
        bool,
        Field(description="Whether the stream is as near to rehearsed streams as they are to each other."),
    ]


class DecisionResponse(BaseModel):
    """The rows to act upon."""

    act: Annotated[list[bool], Field(description="One a row.")]
    answered_share: Annotated[
        float, Field(description="The estimated share of the recent stream that is acted upon.")
    ]
    reached: Annotated[
        bool,
        Field(description="Whether the accuracy can be reached; if not, nothing is to be acted upon."),
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
    estimated_accuracy: AccuracyResponse | None
    answered_by: Literal["student", "source"]
    mode: Mode
    learned: bool
    reason: Annotated[str, Field(description="Why nothing was learned, or rows were set aside.")]
    sets: Annotated[
        list[list[int]] | None,
        Field(description="The classes of each row's prediction set; only where coverage was asked for."),
    ] = None
    decision: Annotated[DecisionResponse | None, Field(description="Only where accuracy was asked for.")] = (
        None
    )


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
    asked = ("sets", "decision")
    fields = {
        names.get(name, name): value
        for name, value in vars(answer).items()
        if name not in asked or value is not None
    }
    return fields | {"probabilities": answer.probabilities.tolist()}


def json_response(content: Any, status: int = 200) -> Response:
    """A response in JSON, dataclasses as objects; it has no NaN: null stands for it."""
    return Response(to_json(content, inf_nan_mode="null"), status, media_type="application/json")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route for its documentation."""
    return {status: {"model": RefusalResponse} for status in statuses}


def predict_routes(
    service: ServiceLike, limits: DoorLimits, tokens: Tokens | None, transform: Transform | None
) -> APIRouter:
    """The route of predictions."""
    router = APIRouter(tags=["predict"])
    decoders = CapacityLimiter(DECODED_AT_ONCE)

    @router.post(
        WITH_INPUTS,
        dependencies=for_changing(tokens),
        openapi_extra=_BODY,
        response_model=PredictionResponse,
        responses=refusals(400, 401, 403, 413, 415, 422, 429, 503, 507),
    )
    async def predict(
        request: Request,
        stream: StreamName = DEFAULT_STREAM,
        coverage: WantedCoverage = None,
        accuracy: WantedAccuracy = None,
    ) -> Response:
        """Answer a batch; in mode adapted and shadow the stream is learned from.

        The batch comes as JSON, as an npy file, or as one image. A stream is created by its first batch.
        With `coverage` the answer has prediction sets, with `accuracy` the rows to act upon; both need a
        rehearsal.
        """
        body = await request.body()
        read = partial(read_inputs, body, request.headers.get("content-type", ""), limits, transform)
        inputs = await to_thread.run_sync(read, limiter=decoders)
        # A request that has come is answered even if its client has gone: the stream has learned from it.
        queued = service.submit(stream, inputs, Asked(coverage, accuracy))
        answer = await asyncio.shield(asyncio.wrap_future(queued))
        return json_response(prediction_fields(answer))

    return router


def change_routes(service: ServiceLike, tokens: Tokens | None) -> APIRouter:
    """The routes; each returns when the change is made, and on disk where it says so."""
    router = APIRouter(
        tags=["change"],
        dependencies=for_changing(tokens),
        responses=refusals(400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 507),
    )

    @router.post("/v1/labels", response_model=LabelsTaken)
    def labels(body: LabelsBody, stream: StreamName = DEFAULT_STREAM) -> Response:
        """Take the labels of an earlier request; they are on disk when this is answered."""
        return json_response(service.label(stream, body.request, body.labels))

    @router.post("/v1/reset", response_model=ChangeResponse)
    def reset(stream: StreamName = DEFAULT_STREAM) -> Response:
        """Go back to the source model."""
        service.reset(stream)
        return json_response({"stream": stream, "done": "reset"})

    @router.post("/v1/release", response_model=ChangeResponse)
    def release(stream: StreamName = DEFAULT_STREAM) -> Response:
        """Let a stream that its guard holds learn again; one that is not held stays as it is."""
        service.release(stream)
        return json_response({"stream": stream, "done": "release"})

    @router.post("/v1/rollback", response_model=SnapshotResponse)
    def rollback(body: RollbackBody | None = None, stream: StreamName = DEFAULT_STREAM) -> Response:
        """Go back by a number of snapshots, 1 without a body."""
        name = service.rollback(stream, body.steps if body else 1)
        return json_response({"stream": stream, "snapshot": name})

    @router.post("/v1/snapshot", response_model=SnapshotResponse)
    def snapshot(stream: StreamName = DEFAULT_STREAM) -> Response:
        """Write a snapshot; it is on disk when this is answered."""
        return json_response({"stream": stream, "snapshot": service.snapshot(stream)})

    @router.post("/v1/mode", response_model=ChangeResponse)
    def mode(body: ModeBody, stream: StreamName = DEFAULT_STREAM) -> Response:
        """Change who answers, and whether the stream is learned from."""
        service.set_mode(stream, body.mode)
        return json_response({"stream": stream, "done": body.mode})

    return router


def health_routes(service: ServiceLike) -> APIRouter:
    """The routes for load balancers; open to everyone, and without anything to hide."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", response_model=HealthResponse)
    async def alive() -> Response:
        """Whether the process answers at all."""
        return json_response({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", response_model=HealthResponse, responses={503: {"model": HealthResponse}})
    async def ready() -> Response:
        """Whether requests are taken."""
        if service.ready:
            return json_response({"status": "ready"})
        return json_response({"status": "not ready"}, 503)

    return router


def read_routes(service: ServiceLike, tokens: Tokens | None, metrics: DoorMetrics) -> APIRouter:
    """The routes of streams and metrics."""
    router = APIRouter(tags=["read"], dependencies=for_reading(tokens), responses=refusals(401, 403))

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def exposed() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/streams", response_model=list[StreamResponse])
    def streams() -> Response:
        """All streams."""
        return json_response(service.streams())

    @router.get("/v1/streams/{name}", response_model=StreamResponse, responses=refusals(404, 422))
    def status(name: StreamInPath) -> Response:
        """One stream."""
        return json_response(service.status(name))

    @router.get("/v1/streams/{name}/history", response_model=list[HistoryRow], responses=refusals(404, 422))
    def history(name: StreamInPath, since: Since = 0) -> Response:
        """Rows of the stream's curves, oldest first."""
        return json_response(service.history(name, since))

    return router
