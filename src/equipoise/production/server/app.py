"""The HTTP door: a FastAPI app in front of a service, and a server that ends well."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware

from equipoise.errors import OptionError
from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.limits import DoorLimits
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.page import page_routes
from equipoise.production.server.routes.access import BoundedBodies, LocalOnly, Tokens, is_loopback
from equipoise.production.server.routes.endpoints import (
    change_routes,
    health_routes,
    predict_routes,
    read_routes,
)
from equipoise.production.server.routes.metrics import CountedRequests, DoorMetrics
from equipoise.production.server.routes.refusals import Incidents, add_refusals
from equipoise.version import __version__

CONNECTIONS = 1000
"""The most connections; one more is answered with status 503."""

SECONDS_TO_END = 20
"""The seconds that a stop waits for requests that have come."""


def create_app(
    service: ServiceLike,
    *,
    tokens: Tokens | None = None,
    limits: DoorLimits | None = None,
    transform: Transform | None = None,
    local: bool = False,
) -> FastAPI:
    """Make the app that puts a service on HTTP; the caller closes the service after the last response.

    Args:
        service: the service that answers.
        tokens: the bearer tokens that requests need. Without them only this machine is answered: a request
            whose Host is not a loopback name, or that a page of another origin sent, is refused.
        limits: the largest requests that are taken; the defaults without.
        transform: turns an uploaded image (RGB) into an input of the model; without one, images are refused
            with status 415.
        local: whether the server listens on a loopback address: without a token for reading, too, only this
            machine is answered there.
    """
    limits = limits or DoorLimits()
    metrics = DoorMetrics(service)
    open_to_this_machine = tokens is None or (local and tokens.read is None)
    guards = [Middleware(LocalOnly)] if open_to_this_machine else []
    app = FastAPI(
        title="equipoise",
        summary="A classifier that adapts to each of its streams, and says how accurate it is.",
        version=__version__,
        docs_url=None,  # their pages load scripts from another site; /openapi.json needs none
        redoc_url=None,
        middleware=[
            Middleware(CountedRequests, metrics),
            Middleware(Incidents),
            *guards,
            Middleware(BoundedBodies, limits),
        ],
    )
    add_refusals(app)
    app.include_router(health_routes(service))
    app.include_router(predict_routes(service, limits, tokens, transform))
    app.include_router(change_routes(service, tokens))
    app.include_router(read_routes(service, tokens, metrics))
    app.router.routes.extend(page_routes())
    return app


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address; connections are refused until a server listens on it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--host {host}: no such address: {error}") from error
    # asyncio sends small responses at once (TCP_NODELAY) only on sockets that name the protocol; without it a
    # response of several writes waits up to 40 ms for the client's acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"port {port} of {host} is in use: stop the other server, or choose another with --port "
                "(--port 0 takes any that is free)"
            ) from error
        raise OptionError(f"{host}, port {port} cannot be used: {error.strerror}") from error
    return bound


def is_local(bound: socket.socket) -> bool:
    """Whether only programs of this machine can reach a socket."""
    return is_loopback(str(bound.getsockname()[0]))


def url_of(bound: socket.socket) -> str:
    """The URL of a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Uvicorn's server with signals left to the caller: its own handlers end the process by the signal."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)
        self._on_start()


def serve(app: FastAPI, service: ServiceLike, bound: socket.socket, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; then answer the requests that have come, and close the service.

    A second signal ends the waiting for open requests. Nothing ends the saving of the streams but SIGKILL.

    Args:
        app: to serve.
        service: closed at the end, also after an error.
        bound: the socket to listen on.
        started: called when connections are taken.
    """
    try:
        asyncio.run(_served(app, service, bound, started))
    finally:
        bound.close()


async def _served(
    app: FastAPI, service: ServiceLike, bound: socket.socket, started: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_END,
        server_header=False,
        ws="none",
    )
    server = _Server(config, started)

    def stop() -> None:
        server.force_exit, server.should_exit = server.should_exit, True

    loop = asyncio.get_running_loop()
    with _signals(loop, stop):
        try:
            await server.serve([bound])
        finally:
            await asyncio.to_thread(service.close)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], Any]) -> Iterator[None]:
    """Call a function for SIGINT and SIGTERM, in the thread of the loop."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: loop.call_soon_threadsafe(stop)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
