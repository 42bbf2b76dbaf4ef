"""The work of `equipoise serve`: check address and tokens, make the service, serve it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise.cli.rehearse import unit_floats
from equipoise.errors import OptionError
from equipoise.production.server.app import bound_socket, create_app, is_local, serve, url_of
from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.limits import DoorLimits, Limits
from equipoise.production.server.model_factory import ServiceFromFactory, Transform, load_factory
from equipoise.production.server.routes.access import HOW_TO_MAKE, Tokens


@dataclass(frozen=True)
class Served:
    """The model, source statistics and method of a server.

    Attributes:
        factory: the name of the function that makes the model.
        source: the file of its source statistics.
        method: the name of the adapting method.
        size: the side of images; None for those of the factory's transform.
        state: the folder of the streams.
        replicas: processes on Ray; 0 for this process.
        address: of a Ray cluster.
    """

    factory: str
    source: Path | None
    method: str
    size: int | None
    state: Path
    replicas: int
    address: str | None


@dataclass(frozen=True)
class Access:
    """The address, and the files of the tokens."""

    host: str
    port: int
    change_token_file: Path | None
    read_token_file: Path | None

    def tokens(self, local: bool) -> Tokens | None:
        """The tokens; OptionError where one is missing."""
        if self.change_token_file is not None:
            return Tokens.from_files(self.change_token_file, self.read_token_file)
        if self.read_token_file is not None:
            raise OptionError("--read-token-file needs --change-token-file: who may not read may not change")
        if not local:
            raise OptionError(
                f"--host {self.host} can be reached from other machines: expected --change-token-file FILE, "
                f"so that not everyone can change the model; make a token with: {HOW_TO_MAKE}"
            )
        return None


def serve_model(
    served: Served, access: Access, limits: Limits, door_limits: DoorLimits, show: Callable[[str], None]
) -> None:
    """Serve until a signal, then save every stream."""
    with bound_socket(access.host, access.port) as bound:
        local = is_local(bound)
        tokens = access.tokens(local)
        service, transform = make_service(served, limits)
        app = create_app(service, tokens=tokens, limits=door_limits, transform=transform, local=local)

        def started() -> None:
            for line in first_lines(url_of(bound), served, access, transform is not None):
                show(line)

        serve(app, service, bound, started)
        show(f"Stopped; every stream is saved in {served.state}.")


def make_service(served: Served, limits: Limits) -> tuple[ServiceLike, Transform | None]:
    """The service, and the transform of images."""
    if served.source is not None and not served.source.is_file():
        raise OptionError(f"--source {served.source}: there is no such file; `equipoise rehearse` writes one")
    model, transform = load_factory(served.factory)
    if served.size is not None:
        if transform is not None:
            raise OptionError(f"{served.factory} has a transform of its own: leave out --size")
        transform = unit_floats(served.size)
    source = None if served.source is None else served.source.resolve()  # replicas have folders of their own
    recipe = ServiceFromFactory(served.factory, source, served.method, limits)
    if not served.replicas:
        return recipe.around(model, served.state), transform
    from equipoise.production.server.ray.service import RayService

    return RayService(recipe, served.state, replicas=served.replicas, address=served.address), transform


def first_lines(url: str, served: Served, access: Access, images: bool) -> Iterator[str]:
    """The lines that a server prints when it takes requests."""
    token = (
        f' -H "Authorization: Bearer $(cat {access.change_token_file})"' if access.change_token_file else ""
    )
    kind, file = ("image/png", "image.png") if images else ("application/x-npy", "batch.npy")
    yield f"Serving {served.factory} with {served.method} at {url} (Ctrl-C stops it and saves every stream)"
    yield f"State of the streams: {served.state.resolve()}"
    yield "Try it:"
    request = f"'{url}/v1/predict?stream=camera-1' -H 'Content-Type: {kind}'{token}"
    yield f"    curl {request} --data-binary @{file}"
