"""A server with the live page and made-up streams that a test moves on."""

import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException
from playwright.sync_api import Browser, ConsoleMessage, Request

from equipoise.production.server.interface import GuardEvent, Mode, StreamStatus
from equipoise.production.server.page import page_routes
from tests.browser.opened import Opened, Scheme


@dataclass
class MadeUp:
    """A stream whose accuracy falls and rises, one row a batch.

    Attributes:
        name: of the stream.
        mode: of the stream.
        guard: the status in words.
        rows: of its history.
        events: of its guard.
        labels: that have come; seven of eight answers were right.
        forgotten: whether it is on disk, one of more than the server remembers.
    """

    name: str
    mode: Mode = "adapted"
    guard: str = "batch 40: learning\nevidence against the adapted model: estimates 0%, labels 3%"
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[GuardEvent] = field(default_factory=list)
    labels: int = 0
    decisions: dict[str, float] = field(default_factory=dict)
    forgotten: bool = False

    def move(self, batches: int = 1, inside: bool = True, classes: int = 10, pace: float = 1.0) -> None:
        """Add batches to the end, the last of them now."""
        start = time.time() - pace * batches
        for _ in range(batches):
            at = len(self.rows) + 1
            start += pace
            accuracy = 0.85 + 0.08 * math.sin(at / 9) + 0.01 * math.sin(at * 2.3)
            weights = [2 + math.sin(at / 5 + each) for each in range(classes)]
            self.rows.append(
                {
                    "index": at,
                    "time": start,
                    "samples": 64 * at,
                    "accuracy": accuracy,
                    "low": accuracy - 0.04,
                    "high": min(1.0, accuracy + 0.04),
                    "inside": inside,
                    "source_accuracy": 0.78 + 0.05 * math.sin(at / 9),
                    "confidence": accuracy + 0.02 * math.sin(at / 4),
                    "temperature": 1.4 + 0.3 * math.sin(at / 11),
                    "entropy": 0.3,
                    "agreement": 0.9,
                    "histogram": [each / sum(weights) for each in weights],
                }
            )

    def act(self, action: str, reason: str, trigger: str = "paired", at: float | None = None) -> None:
        """Add an event of the guard."""
        when = time.time() if at is None else at
        self.events.append(GuardEvent(when, len(self.rows), action, trigger, reason))

    def status(self) -> StreamStatus:
        """The stream as the door shows it."""
        last = self.rows[-1] if self.rows else {}
        names = {"accuracy": "accuracy", "accuracy_low": "low", "accuracy_high": "high"}
        gauges = {name: last[column] for name, column in names.items() if column in last}
        gauges |= {"labels": self.labels, "labels_seen": 4 * self.labels}
        gauges |= ({"true_accuracy": 0.875} if self.labels else {}) | self.decisions
        batches = len(self.rows)
        seen = last.get("time", time.time())
        numbers = (batches, 64 * batches, seen)
        if self.forgotten:
            return StreamStatus(self.name, self.mode, False, *numbers, self.guard, {}, (), ())
        snapshots = ["000010", "000020"]
        return StreamStatus(self.name, self.mode, True, *numbers, self.guard, gauges, self.events, snapshots)


@dataclass
class Live:
    """What the server shows.

    Attributes:
        streams: in the order in which they are listed.
        token: that reading needs; None for no token.
        address: of the page.
    """

    streams: list[MadeUp] = field(default_factory=list)
    token: str | None = None
    address: str = ""


def application(live: Live) -> FastAPI:
    """The part of the door that the page reads."""
    app = FastAPI()

    def check(authorization: str | None) -> None:
        if live.token is not None and authorization != f"Bearer {live.token}":
            raise HTTPException(401, "a token is needed")

    @app.get("/v1/streams")
    def streams(authorization: str | None = Header(None)) -> list[dict[str, Any]]:
        check(authorization)
        return [asdict(stream.status()) for stream in live.streams]

    @app.get("/v1/streams/{name}/history")
    def history(name: str, since: int = 0, authorization: str | None = Header(None)) -> list[dict[str, Any]]:
        check(authorization)
        (stream,) = [stream for stream in live.streams if stream.name == name]
        return [row for row in stream.rows if row["index"] > since]

    app.router.routes.extend(page_routes())
    return app


@contextmanager
def served(live: Live, port: int = 0) -> Iterator[Live]:
    """Serve it on a free port of this machine, or on a given one, in a thread."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        live.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server = uvicorn.Server(uvicorn.Config(application(live), log_level="warning", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield live
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def visited(browser: Browser, live: Live, width: int = 1200, scheme: Scheme = "light") -> Iterator[Opened]:
    """Open the page in a window of a width; errors, and requests to other servers, are noted."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    made = Opened(context.new_page())

    def asked(request: Request) -> None:
        if not request.url.startswith(live.address):
            made.requests.append(request.url)

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            made.errors.append(message.text)

    made.page.on("request", asked)
    made.page.on("console", heard)
    made.page.on("pageerror", lambda error: made.errors.append(str(error)))
    made.page.goto(live.address)
    yield made
    context.close()
