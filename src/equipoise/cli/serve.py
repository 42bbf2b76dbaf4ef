"""`equipoise serve`: a model of the user behind HTTP, adapting to each of its streams."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.plain_errors import plain_errors

_LIMITS = "Limits"
ACCESS = "Access"


class ServeEngine(str, Enum):
    """The place of the streams: this process, or replicas on Ray Serve."""

    local = "local"
    ray = "ray"


def serve_command(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="A function without arguments that returns your model, or your model and a transform of "
            "images: mymodel:load is `load` in mymodel.py, here or installed.",
        ),
    ],
    state: Annotated[
        Path, typer.Option(help="Folder for the state of every stream; the same folder resumes them.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(help="The file that `equipoise rehearse` or `source.save` wrote.", show_default=False),
    ] = None,
    method: Annotated[str, typer.Option(help="The method that adapts.")] = "poise",
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Take images as floats from 0 to 1 in squares of this side, as `equipoise rehearse --size`; "
            "not with a transform.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=ACCESS)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 takes any that is free.", rich_help_panel=ACCESS)
    ] = 8000,
    change_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token for every POST; required off loopback.", rich_help_panel=ACCESS
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token for GET of streams and metrics; without it, reading is open.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    engine: Annotated[
        ServeEngine, typer.Option(help="This process, or replicas on Ray Serve.")
    ] = ServeEngine.local,
    replicas: Annotated[int, typer.Option(min=1, help="Processes of --engine ray.")] = 2,
    address: Annotated[
        str | None, typer.Option(help="An existing Ray cluster; without it Ray starts on this machine.")
    ] = None,
    latency_ms: Annotated[
        float,
        typer.Option(
            min=1,
            help="Milliseconds after which the source model answers a request that the adapter has not.",
            rich_help_panel=_LIMITS,
        ),
    ] = 1000.0,
    rows: Annotated[
        int, typer.Option(min=1, help="The most samples in a request.", rich_help_panel=_LIMITS)
    ] = 256,
    waiting: Annotated[
        int,
        typer.Option(
            min=1, help="The most requests that wait; more get status 429.", rich_help_panel=_LIMITS
        ),
    ] = 512,
    streams: Annotated[
        int, typer.Option(min=1, help="The most streams, in memory and on disk.", rich_help_panel=_LIMITS)
    ] = 100_000,
    resident: Annotated[
        int, typer.Option(min=1, help="The most streams in memory.", rich_help_panel=_LIMITS)
    ] = 1000,
    request_mib: Annotated[
        int, typer.Option(min=1, help="The largest request, in MiB.", rich_help_panel=_LIMITS)
    ] = 32,
    image_pixels: Annotated[
        int, typer.Option(min=1, help="The largest image, width times height.", rich_help_panel=_LIMITS)
    ] = 4096 * 4096,
) -> None:
    """Serve a model over HTTP: it adapts to each of its streams, and says how accurate it is.

    With this in mymodel.py

        def load():
            model = ...  # a torch.nn.Module that returns logits
            return model, transform  # a PIL image to a tensor; or the model alone

    and the file of `equipoise rehearse mymodel:load held_out --out mymodel.source.safetensors`:

        equipoise serve mymodel:load --source mymodel.source.safetensors --state state

        curl http://127.0.0.1:8000/v1/predict?stream=camera-1 -H Content-Type:image/png --data-binary @1.png

    http://127.0.0.1:8000/ shows the streams. Ctrl-C or SIGTERM answers the requests that have come, saves
    every stream and ends with status 0; the same command goes on from there.

    On another address than loopback a token is needed for every request that changes a stream:

        python -c 'import secrets; print(secrets.token_urlsafe(32))' > token

        equipoise serve mymodel:load --source FILE --state state --host 0.0.0.0 --change-token-file token
    """
    with plain_errors("Stopped before the server was ready.", extra="serve"):
        from equipoise.cli.serving import Access, Served, serve_model
        from equipoise.production.server.limits import DoorLimits, Limits

        serve_model(
            Served(
                factory, source, method, size, state, replicas if engine is ServeEngine.ray else 0, address
            ),
            Access(host, port, change_token_file, read_token_file),
            Limits(rows=rows, waiting=waiting, latency_ms=latency_ms, streams=streams, resident=resident),
            DoorLimits(request_bytes=request_mib * 2**20, image_pixels=image_pixels, rows=rows),
            typer.echo,
        )
