"""The HTTP door: a FastAPI app in front of a service."""

from fastapi import FastAPI
from starlette.middleware import Middleware

from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.page import page_routes
from equipoise.production.server.routes.bodies import BoundedBodies
from equipoise.production.server.routes.control import change_routes
from equipoise.production.server.routes.limits import DoorLimits
from equipoise.production.server.routes.local import LocalOnly
from equipoise.production.server.routes.metrics import CountedRequests, DoorMetrics
from equipoise.production.server.routes.predict import predict_routes
from equipoise.production.server.routes.refusals import Incidents, add_refusals
from equipoise.production.server.routes.status import health_routes, read_routes
from equipoise.production.server.routes.tokens import Tokens
from equipoise.version import __version__


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
