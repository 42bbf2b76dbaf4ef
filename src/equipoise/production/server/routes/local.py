"""The guard of a door that can be passed without a token: only programs and pages of this machine get in.

A page of any site can make a browser send requests to 127.0.0.1. Its name, bound to 127.0.0.1 afterwards (DNS
rebinding), would even let it read the answers. Both are visible in headers that a page cannot set.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from equipoise.production.server.routes.refusals import ForeignRequestError, refusal


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
