"""The process that is measured: the HTTP door in front of a service, or in front of the bare model.

    python benchmarks/serving/served.py poise|bare STATE THREADS

Prints the URL when requests are taken.
"""

import sys
from pathlib import Path

import torch
from bare_service import BareService
from pattern_stream import CLASSES, rehearsed, trained_model
from torch import nn

import equipoise as eq
from equipoise.serving.door import create_app
from equipoise.serving.interface import ServiceLike
from equipoise.serving.server import bound_socket, serve, url_of
from equipoise.serving.service import Service


def service_of(kind: str, model: nn.Module, state: Path) -> ServiceLike:
    """The bare model, or a service with the method of a name."""
    if kind == "bare":
        return BareService(model, CLASSES)
    return Service(eq.create(kind, model, rehearsed(model)), state)


def main(kind: str, state: str, threads: str) -> None:
    """Serve until SIGTERM."""
    torch.set_num_threads(int(threads))
    model = trained_model()
    service = service_of(kind, model, Path(state))
    with bound_socket("127.0.0.1", 0) as bound:
        serve(create_app(service), service, bound, lambda: print(url_of(bound), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
