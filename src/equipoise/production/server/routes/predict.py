"""POST /v1/predict: a batch of inputs in, classes and calibrated probabilities out."""

import asyncio
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.routes.bodies import WITH_INPUTS
from equipoise.production.server.routes.images import FORMATS
from equipoise.production.server.routes.limits import DoorLimits
from equipoise.production.server.routes.payloads import NPY, read_inputs
from equipoise.production.server.routes.refusals import JSON
from equipoise.production.server.routes.schemas import (
    DEFAULT_STREAM,
    PredictionResponse,
    StreamName,
    json_response,
    prediction_fields,
    refusals,
)
from equipoise.production.server.routes.tokens import Tokens, for_changing

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
    async def predict(request: Request, stream: StreamName = DEFAULT_STREAM) -> Response:
        """Answer a batch; in mode adapted and shadow the stream is learned from.

        The batch comes as JSON, as an npy file, or as one image. A stream is created by its first batch.
        """
        body = await request.body()
        read = partial(read_inputs, body, request.headers.get("content-type", ""), limits, transform)
        inputs = await to_thread.run_sync(read, limiter=decoders)
        # A request that has come is answered even if its client has gone: the stream has learned from it.
        answer = await asyncio.shield(asyncio.wrap_future(service.submit(stream, inputs)))
        return json_response(prediction_fields(answer))

    return router
