"""The work of `equipoise serve`: check the tokens, make the service, say how to try it."""

from pathlib import Path

from equipoise.cli.rehearse import command_line, unit_floats
from equipoise.errors import OptionError
from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.limits import Limits
from equipoise.production.server.model_factory import Transform, load_factory
from equipoise.production.server.routes.access import HOW_TO_MAKE, Tokens
from equipoise.production.server.service import ServiceFromFactory
from equipoise.registry import method_class


def make_tokens(host: str, local: bool, change: Path | None, read: Path | None) -> Tokens | None:
    """The tokens of the files `change` and `read`; OptionError where one is missing."""
    if change is not None:
        return Tokens.from_files(change, read)
    if read is not None:
        raise OptionError("--read-token-file needs --change-token-file: who may not read may not change")
    if not local:
        raise OptionError(
            f"--host {host} can be reached from other machines: expected --change-token-file FILE, "
            f"so that not everyone can change the model; make a token with: {HOW_TO_MAKE}"
        )
    return None


def make_service(
    factory: str,
    size: int | None,
    source: Path | None,
    method: str,
    limits: Limits,
    state: Path,
    replicas: int,
    address: str | None,
) -> tuple[ServiceLike, Transform | None]:
    """The service, and the transform of images.

    Args:
        factory: the name of the function that makes the model.
        size: the side of images; None for those of the factory's transform.
        source: the file of the source statistics.
        method: the name of the adapting method.
        limits: of the service.
        state: the folder of the streams.
        replicas: processes on Ray; 0 for this process.
        address: of a Ray cluster.
    """
    if source is not None and not source.is_file():
        raise OptionError(f"--source {source}: there is no such file; `equipoise rehearse` writes one")
    if source is None and method_class(method).needs_source:
        file = "model.source.safetensors"
        rehearse = command_line("rehearse", factory, "HELD_OUT", method=method, size=size, out=file)
        serve = command_line("serve", factory, method=method, size=size, source=file, state=state)
        raise OptionError(
            f"{method} needs source statistics: expected --source FILE, made once of labelled images:\n"
            f"    {rehearse}\n"
            f"    {serve}\n"
            f'Of other inputs: equipoise.rehearse(model, loader, method="{method}").save("{file}")'
        )
    model, transform = load_factory(factory)
    if size is not None:
        if transform is not None:
            raise OptionError(f"{factory} has a transform of its own: leave out --size")
        transform = unit_floats(size)
    path = None if source is None else source.resolve()  # replicas have folders of their own
    recipe = ServiceFromFactory(factory, path, method, limits)
    if not replicas:
        return recipe.around(model, state), transform
    from equipoise.production.server.ray.service import RayService

    return RayService(recipe, state, replicas=replicas, address=address), transform


def first_lines(url: str, factory: str, method: str, state: Path, token: Path | None, images: bool) -> str:
    """The lines that a server prints when it takes requests."""
    header = f' -H "Authorization: Bearer $(cat {token})"' if token else ""
    kind, file = ("image/png", "image.png") if images else ("application/x-npy", "batch.npy")
    return f"""\
Serving {factory} with {method} at {url} (Ctrl-C stops it and saves every stream)
State of the streams: {state.resolve()}
Try it:
    curl '{url}/v1/predict?stream=camera-1' -H 'Content-Type: {kind}'{header} --data-binary @{file}"""
