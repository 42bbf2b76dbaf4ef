"""GET /metrics in Prometheus' text format: requests at the door, and the gauges of streams."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.production.server.interface import Mode, ServiceLike
from equipoise.version import __version__

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]")


class DoorMetrics:
    """The metrics of one app, in a registry of its own so that several apps can live in a process."""

    def __init__(self, service: ServiceLike) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StreamsCollector(service))
        self._requests = Counter(
            "equipoise_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "equipoise_request_seconds",
            "Time from a request to the end of its response.",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The metrics as Prometheus reads them."""
        return generate_latest(self._registry)


class StreamsCollector(Collector):
    """The streams of a service at the time of reading.

    Streams in memory, and those on disk whose gauges the service remembers, have series of their own: their
    number is bounded, that of all streams is not.
    """

    def __init__(self, service: ServiceLike) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metrics of all streams."""
        streams, gauge, counter = self._service.streams(), GaugeMetricFamily, CounterMetricFamily
        resident = sum(status.resident for status in streams)
        known = [status for status in streams if status.resident or status.gauges]
        served = [((self._service.method, __version__), 1)]
        yield _family(
            gauge, "service_info", "1; the labels say what is served.", ["method", "version"], served
        )
        counts = [(("resident",), resident), (("evicted",), len(streams) - resident)]
        yield _family(gauge, "streams", "Streams in memory and on disk.", ["state"], counts)
        for kind, name, about, field in (
            (counter, "batches", "Batches answered.", "batches"),
            (counter, "samples", "Samples answered.", "samples"),
            (gauge, "last_seen_seconds", "Time of the last request, since 1970.", "last_seen"),
        ):
            values = [((status.name,), getattr(status, field)) for status in known]
            yield _family(kind, f"stream_{name}", about, ["stream"], values)
        modes = [((s.name, mode), float(s.mode == mode)) for s in known for mode in get_args(Mode)]
        about = "1 for the mode that the stream is in."
        yield _family(gauge, "stream_mode", about, ["stream", "mode"], modes)
        for name in dict.fromkeys(name for status in known for name in status.gauges):
            values = [((s.name,), s.gauges[name]) for s in known if name in s.gauges]
            about = f"The monitor's gauge {name} over its last window."
            yield _family(gauge, _NOT_ALLOWED.sub("_", name), about, ["stream"], values)


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    about: str,
    labels: list[str],
    values: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """A metric with a value for each set of labels."""
    family = kind(f"equipoise_{name}", about, labels=labels)
    for named, value in values:
        family.add_metric(named, value)
    return family


class CountedRequests:
    """Middleware that counts and times every response."""

    def __init__(self, app: ASGIApp, metrics: DoorMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 499  # nginx' status for a client that has gone

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, status, time.perf_counter() - start)
