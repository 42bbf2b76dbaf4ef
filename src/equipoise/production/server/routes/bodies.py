"""A bound on the body of every request, by its declared length and by the bytes that come."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.production.server.routes.limits import CONTROL_BYTES, DoorLimits
from equipoise.production.server.routes.refusals import RequestTooLargeError

WITH_INPUTS = "/v1/predict"
"""The route whose requests have inputs of the model in them."""


class BoundedBodies:
    """Middleware that stops reading a body at the limit; the route that reads it answers with status 413."""

    def __init__(self, app: ASGIApp, limits: DoorLimits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a body that is counted while it is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limits.request_bytes if scope["path"] == WITH_INPUTS else CONTROL_BYTES
        declared = Headers(scope=scope).get("content-length", "0")
        left = limit

        async def counted() -> Message:
            nonlocal left
            if declared.isdecimal() and int(declared) > limit:
                raise _too_large(limit)
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_large(limit)
            return message

        await self.app(scope, counted, send)


def _too_large(limit: int) -> HTTPException:
    """The refusal; FastAPI passes on this type alone while it reads a body."""
    return HTTPException(RequestTooLargeError.status, f"expected a body of at most {limit:,} bytes, got more")
