"""Refusals of the HTTP door: JSON `{"error": …}` with the status of the error, and nothing of the inside."""

import logging
import secrets

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.errors import BatchError, ModelError
from equipoise.production.server.errors import ServiceError

logger = logging.getLogger(__name__)

JSON = "application/json"

RETRY_SECONDS = 1
"""Seconds to wait before a request that came at a bad moment is sent again."""

_TRY_AGAIN = (429, 503)
_SHOWN = 200
_NAMED = 5
"""Problems of one request that the response describes: a body can have as many as it has bytes."""


class RequestTooLargeError(ServiceError, ValueError):
    """A request above a limit of the door."""

    status = 413


class ContentTypeError(ServiceError, TypeError):
    """A content type that the door does not read."""

    status = 415


class TokenError(ServiceError, PermissionError):
    """A request without the token that it needs."""

    status = 401


class ForeignRequestError(ServiceError, PermissionError):
    """A request that a page of another site made a browser send."""

    status = 403


def refusal(status: int, message: str) -> Response:
    """The response to a refused request."""
    headers = {}
    if status in _TRY_AGAIN:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if status == TokenError.status:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(to_json({"error": message}), status, headers, JSON)


def add_refusals(app: FastAPI) -> None:
    """Answer every error that a request can cause with its own status."""

    @app.exception_handler(ServiceError)
    async def refused(_: Request, error: ServiceError) -> Response:
        return refusal(error.status, str(error))

    @app.exception_handler(BatchError)
    @app.exception_handler(ModelError)
    async def unfit(_: Request, error: Exception) -> Response:
        return refusal(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = error.errors()
        kind = request.headers.get("content-type", "")
        if not _is_json(kind) and any(map(_has_unread_body, problems)):
            return refusal(ContentTypeError.status, f"expected Content-Type: {JSON}, got {kind or 'none'}")
        more = [f"and {len(problems) - _NAMED:,} more"] if len(problems) > _NAMED else []
        return refusal(422, "; ".join([*map(_described, problems[:_NAMED]), *more]))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(_: Request, error: HTTPException) -> Response:
        response = refusal(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response


def _has_unread_body(problem: dict[str, object]) -> bool:
    """Whether a body came that was not read as JSON."""
    return problem["loc"] == ("body",) and problem["type"] != "missing"


def _is_json(content_type: str) -> bool:
    """Whether FastAPI reads a body of this type as JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def _described(problem: dict[str, object]) -> str:
    where = problem["loc"]
    place = ".".join(map(str, where)) if isinstance(where, tuple) else str(where)
    return f"{place[:_SHOWN]}: {problem['msg']}, got {str(problem.get('input'))[:_SHOWN]!r}"


class Incidents:
    """Middleware that answers an unexpected error with status 500 and an id, under which the log has it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except ClientDisconnect:
            return  # nobody is there to answer
        except Exception:
            incident = secrets.token_hex(8)
            logger.exception("incident %s: %s %s", incident, scope.get("method"), scope.get("path"))
            if started:
                raise
            message = f"an error of the server, written to its log as incident {incident}"
            await refusal(500, message)(scope, receive, send)
