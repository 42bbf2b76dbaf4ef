"""The routes that change a stream other than by predictions: labels, reset, release, rollback and so on."""

from fastapi import APIRouter
from starlette.responses import Response

from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.routes.schemas import (
    DEFAULT_STREAM,
    ChangeResponse,
    LabelsBody,
    LabelsResponse,
    ModeBody,
    RollbackBody,
    SnapshotResponse,
    StreamName,
    json_response,
    refusals,
)
from equipoise.production.server.routes.tokens import Tokens, for_changing


def change_routes(service: ServiceLike, tokens: Tokens | None) -> APIRouter:
    """The routes; each returns when the change is made, and on disk where it says so."""
    router = APIRouter(
        tags=["change"],
        dependencies=for_changing(tokens),
        responses=refusals(400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 507),
    )

    @router.post("/v1/labels", response_model=LabelsResponse)
    def labels(body: LabelsBody, stream: StreamName = DEFAULT_STREAM) -> Response:
        """Take the labels of an earlier request; they are on disk when this is answered."""
        return json_response(vars(service.label(stream, body.request, body.labels)))

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
