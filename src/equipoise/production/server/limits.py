"""The limits of a service: on requests, waiting, streams, memory and disk; and of its HTTP door."""

from dataclasses import dataclass, fields

from equipoise.errors import OptionError
from equipoise.options import integer

CONTROL_BYTES = 2**20
"""The largest body of a request that has no inputs in it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a service.

    Attributes:
        rows: the most samples in a request, and in a batch that requests are joined to.
        waiting: the most requests in the queue; one more is refused with `BusyError`.
        waiting_bytes: the most bytes of samples in the queue, as the model takes them (4 a number); likewise.
        latency_ms: milliseconds after which the source model answers a request that the learner has not.
        unlearned: the most batches of a stream in a row that are answered without learning under load, which
            is when requests wait or several clients at once keep the learner busy: the adapter then learns
            from one batch in `unlearned` + 1.
        streams: the most streams, in memory and on disk; one more is refused with `TooManyStreamsError`.
        resident: the most streams in memory; the one that was used least recently is evicted to disk.
        idle_seconds: seconds without a request after which a stream is evicted.
        save_every: the most batches of a stream between two states on disk: at most so many are lost if the
            process is killed. A guarded stream is also written with each snapshot of its guard.
        remembered_bytes: bytes of answers kept on disk, for all streams together, for labels that come later.
    """

    rows: int = 256
    waiting: int = 512
    waiting_bytes: int = 2**30
    latency_ms: float = 1000.0
    unlearned: int = 3
    streams: int = 100_000
    resident: int = 1_000
    idle_seconds: float = 900.0
    save_every: int = 10
    remembered_bytes: int = 2**28

    def __post_init__(self) -> None:
        for field in fields(self):
            value, low = getattr(self, field.name), 0 if field.name == "unlearned" else 1
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= low:
                raise OptionError(f"expected {field.name} of at least {low}, got {value!r}")


@dataclass(frozen=True)
class DoorLimits:
    """The largest requests that the HTTP door takes; a larger one is refused before it is decoded.

    Attributes:
        request_bytes: of a body with inputs.
        image_pixels: width × height of an image.
        rows: of a batch.
    """

    request_bytes: int = 32 * 2**20
    image_pixels: int = 4096 * 4096
    rows: int = 256

    def __post_init__(self) -> None:
        for name in ("request_bytes", "image_pixels", "rows"):
            integer(name, getattr(self, name), low=1)
