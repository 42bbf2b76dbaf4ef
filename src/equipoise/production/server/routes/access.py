"""Who gets in: bodies of a bounded length; without tokens this machine, with tokens those who have one.

A page of any site can make a browser send requests to 127.0.0.1. Its name, bound to 127.0.0.1 afterwards (DNS
rebinding), would even let it read the answers. Both are visible in headers that a page cannot set.

One token is for reading, one for changing. Every POST changes, because a prediction teaches.
"""

import hmac
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.errors import OptionError
from equipoise.production.server.limits import CONTROL_BYTES, DoorLimits
from equipoise.production.server.routes.refusals import (
    ForeignRequestError,
    RequestTooLargeError,
    TokenError,
    refusal,
)

WITH_INPUTS = "/v1/predict"
"""The route whose requests have inputs of the model in them."""

FEWEST_CHARACTERS = 16
"""The shortest token: 16 random characters cannot be guessed."""

HOW_TO_MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"
"""A command that writes a token."""

_bearer = HTTPBearer(auto_error=False, description="The token for reading (GET) or for changing (POST).")

_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


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


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own; names other than localhost are not."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_local(host: str, origin: str | None) -> None:
    """Refuse a request that names another host, or that a page of another origin sent.

    Args:
        host: the header Host.
        origin: the header Origin, which browsers send with every POST; None without one.
    """
    if not is_loopback(_split(f"//{host}")[0]):
        raise ForeignRequestError(
            f"expected localhost or a loopback address as Host, got {host!r}: the server answers this "
            "machine only, unless reading and changing need tokens"
        )
    if origin is not None and _split(origin)[1] != host.lower():
        raise ForeignRequestError(f"a page of another origin, {origin!r}, may not send requests here")


def _split(url: str) -> tuple[str, str]:
    """The host name of a URL, and the host name with the port; empty where there is none ("null")."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc.lower()
    except ValueError:
        return "", ""


class LocalOnly:
    """Middleware that answers requests of this machine, and refuses those of foreign pages."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                check_local(headers.get("host", ""), headers.get("origin"))
            except ForeignRequestError as error:
                await refusal(error.status, str(error))(scope, receive, send)
                return
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class Tokens:
    """The tokens that requests need.

    Attributes:
        change: for every POST, and good for reading too.
        read: for GET of streams and metrics; None: reading needs no token.
    """

    change: str = field(repr=False)
    read: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("change", "read"):
            token = getattr(self, name)
            if token is not None and not _usable(token):
                raise OptionError(
                    f"expected the token to {name} as at least {FEWEST_CHARACTERS} visible ASCII characters, "
                    f"got {len(token)} characters; make one with: {HOW_TO_MAKE}"
                )
        if self.read == self.change:
            raise OptionError("expected two different tokens, got the same for reading and for changing")

    @classmethod
    def from_files(cls, change: Path, read: Path | None = None) -> "Tokens":
        """The tokens in files, without the space around them."""
        return cls(change=_read_token(change), read=None if read is None else _read_token(read))


def _usable(token: str) -> bool:
    return len(token) >= FEWEST_CHARACTERS and token.isascii() and token.isprintable() and " " not in token


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: no token can be read: {error}; make one with: {HOW_TO_MAKE}") from error


def for_changing(tokens: Tokens | None) -> list[Any]:
    """The dependency that refuses a request without the token for changing; none without tokens."""
    return [] if tokens is None else _needs("changing", tokens.change)


def for_reading(tokens: Tokens | None) -> list[Any]:
    """The dependency that refuses a request without one of the tokens; none where reading needs none."""
    return [] if tokens is None or tokens.read is None else _needs("reading", tokens.read, tokens.change)


def _needs(purpose: str, *known: str) -> list[Any]:
    async def check(sent: _Bearer) -> None:
        token = (sent.credentials if sent else "").encode()
        # All are compared, each in a time that says nothing about where they differ.
        matches = [hmac.compare_digest(token, each.encode()) for each in known]
        if not any(matches):
            raise TokenError(f"expected the token for {purpose}, as the header Authorization: Bearer TOKEN")

    return [Depends(check)]
