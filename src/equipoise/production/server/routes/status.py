"""The routes that change nothing: health, metrics, streams and their curves."""

from typing import Annotated

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.routes.metrics import DoorMetrics
from equipoise.production.server.routes.schemas import (
    LARGEST_INTEGER,
    HealthResponse,
    HistoryRow,
    StreamInPath,
    StreamResponse,
    json_response,
    refusals,
    stream_fields,
)
from equipoise.production.server.routes.tokens import Tokens, for_reading

Since = Annotated[int, Query(ge=0, le=LARGEST_INTEGER, description="Only rows with a larger index.")]


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
        return json_response([stream_fields(status) for status in service.streams()])

    @router.get("/v1/streams/{name}", response_model=StreamResponse, responses=refusals(404, 422))
    def status(name: StreamInPath) -> Response:
        """One stream."""
        return json_response(stream_fields(service.status(name)))

    @router.get("/v1/streams/{name}/history", response_model=list[HistoryRow], responses=refusals(404, 422))
    def history(name: StreamInPath, since: Since = 0) -> Response:
        """Rows of the stream's curves, oldest first."""
        return json_response(service.history(name, since))

    return router
