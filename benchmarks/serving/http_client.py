"""A client that costs little: prepared requests over kept connections, without an HTTP library."""

import asyncio
import io
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

_HEAD = re.compile(rb"HTTP/1.1 (\d+).*?content-length: (\d+)", re.DOTALL | re.IGNORECASE)


@dataclass
class Measured:
    """Responses to many requests.

    Attributes:
        seconds: the time of each request that was answered.
        learned: how many of them the stream was learned from before.
        late: how many the source model answered because the adapter was late, or estimated to be worse.
        statuses: how many responses had each status.
    """

    seconds: list[float] = field(default_factory=list)
    learned: int = 0
    late: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, status: int, body: bytes, seconds: float) -> None:
        """Count a response."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.seconds.append(seconds)
            self.learned += b'"learned":true' in body
            self.late += b'"answered_by":"source"' in body

    def percentile(self, share: float) -> float:
        """A percentile of the time of a request, in milliseconds."""
        return float(np.percentile(self.seconds, 100 * share) * 1000) if self.seconds else float("nan")


def prepared(path: str, batch: np.ndarray[Any, Any]) -> bytes:
    """A POST of a batch as npy."""
    file = io.BytesIO()
    np.save(file, batch)
    body = file.getvalue()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def respond(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Status and body of the response to a request."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    found = _HEAD.match(head)
    if found is None:
        raise ConnectionError(f"expected a response with a length, got {head!r}")
    return int(found[1]), await reader.readexactly(int(found[2]))


async def client(url: str, requests: list[bytes], until: float, measured: Measured, pause: float = 0) -> None:
    """Send requests one after another until a time of `time.perf_counter`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    place = 0
    while time.perf_counter() < until:
        start = time.perf_counter()
        status, body = await respond(reader, writer, requests[place % len(requests)])
        measured.add(status, body, time.perf_counter() - start)
        place += 1
        if pause:
            await asyncio.sleep(pause)
    writer.close()
    await writer.wait_closed()


async def run_clients(
    url: str, requests: list[list[bytes]], seconds: float, pause: float = 0
) -> tuple[Measured, float]:
    """Run a client for each list of requests at once; the responses, and the time that they took."""
    measured, start = Measured(), time.perf_counter()
    until = start + seconds
    await asyncio.gather(*(client(url, own, until, measured, pause) for own in requests))
    return measured, time.perf_counter() - start


async def fetch(url: str, path: str) -> Any:
    """The JSON at a path."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    _, body = await respond(reader, writer, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    writer.close()
    await writer.wait_closed()
    return json.loads(body)
