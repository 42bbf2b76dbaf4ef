"""A process that serves until it is killed: prints what it has acknowledged, one line each."""

import sys
from pathlib import Path

from tests.production.server.support import adapter, ask, batch, labels, service

ROWS = 2


def serve(folder: Path, first: int) -> None:
    own = service(folder, adapter=adapter("norm"), save_every=3)
    for seed in range(first, first + 10_000):
        answer = ask(own, "a", batch(seed, ROWS))
        print("answer", seed, answer.request, flush=True)
        if seed % 2 == 0:
            own.label("a", answer.request, labels(seed, ROWS))
            print("label", seed, answer.request, flush=True)
        if seed % 40 == 25:
            print("snapshot", seed, own.snapshot("a"), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
