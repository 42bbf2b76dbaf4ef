"""The process that is measured: the HTTP door in front of a service, or in front of the bare model.

    python -m benchmarks.serving.served poise|bare FOLDER THREADS

FOLDER has the files of `pattern_stream.prepare`. Prints the URL when requests are taken.
"""

import sys
from pathlib import Path

import torch

import equipoise as eq
from benchmarks.serving.bare_service import BareService
from benchmarks.serving.pattern_stream import CLASSES, prepared_model, prepared_source
from equipoise.production.server.app import bound_socket, create_app, serve, url_of
from equipoise.production.server.interface import ServiceLike
from equipoise.production.server.service import Service


def service_of(kind: str, folder: Path) -> ServiceLike:
    """The bare model, or a service with the method of a name."""
    model = prepared_model(folder)
    if kind == "bare":
        return BareService(model, CLASSES)
    return Service(eq.create(kind, model, prepared_source(folder)), folder / "state")


def main(kind: str, folder: str, threads: str) -> None:
    """Serve until SIGTERM."""
    torch.set_num_threads(int(threads))
    service = service_of(kind, Path(folder))
    with bound_socket("127.0.0.1", 0) as bound:
        serve(create_app(service), service, bound, lambda: print(url_of(bound), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
