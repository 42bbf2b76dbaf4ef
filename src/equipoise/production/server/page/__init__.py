"""The live page: files that show the streams of a service, with nothing fetched from elsewhere."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ADDRESSES = {
    "/": "index.html",
    "/page/page.css": "page.css",
    "/page/page.js": "page.js",
    "/page/stream.js": "stream.js",
    "/page/curves.js": "curves.js",
    "/page/words.js": "words.js",
    "/page/icon.svg": "icon.svg",
    "/page/uPlot.js": "uplot/uPlot.iife.min.js",
    "/page/uPlot.css": "uplot/uPlot.min.css",
}
"""The file behind each address; no other file can be asked for."""

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Scripts and styles only from the files here, requests only to the same server, no frame around the page."""


def page_routes() -> list[Route]:
    """The routes of the page, for an application that also has `/v1/streams` and a stream's history.

    The files hold no data and need no token: the page asks for one when the data do.
    """
    return [_route(address, file) for address, file in ADDRESSES.items()]


def _route(address: str, file: str) -> Route:
    content = files(__name__).joinpath(file).read_bytes()
    media_type = MEDIA_TYPES[file.rpartition(".")[2]]

    async def respond(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return Route(address, respond, methods=["GET"])
