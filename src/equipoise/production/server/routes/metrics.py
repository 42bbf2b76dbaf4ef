"""GET /metrics in Prometheus' text format: requests at the door, and the gauges of every resident stream."""

import re
import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.production.server.interface import Mode, ServiceLike, StreamStatus
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

    Only streams in memory have series of their own: their number is bounded, that of evicted ones is not.
    """

    def __init__(self, service: ServiceLike) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metrics of all streams."""
        about = GaugeMetricFamily(
            "equipoise_service_info", "1; the labels say what is served.", labels=["method", "version"]
        )
        about.add_metric([self._service.method, __version__], 1)
        yield about
        streams = self._service.streams()
        resident = [status for status in streams if status.resident]
        held = GaugeMetricFamily("equipoise_streams", "Streams in memory and on disk.", labels=["state"])
        held.add_metric(["resident"], len(resident))
        held.add_metric(["evicted"], len(streams) - len(resident))
        yield held
        yield from _counters(resident)
        yield _modes(resident)
        yield from _gauges(resident)


def _counters(streams: list[StreamStatus]) -> Iterator[Metric]:
    batches = CounterMetricFamily("equipoise_stream_batches", "Batches answered.", labels=["stream"])
    samples = CounterMetricFamily("equipoise_stream_samples", "Samples answered.", labels=["stream"])
    seen = GaugeMetricFamily(
        "equipoise_stream_last_seen_seconds", "Time of the last request, since 1970.", labels=["stream"]
    )
    for status in streams:
        batches.add_metric([status.name], status.batches)
        samples.add_metric([status.name], status.samples)
        seen.add_metric([status.name], status.last_seen)
    yield from (batches, samples, seen)


def _modes(streams: list[StreamStatus]) -> Metric:
    modes = GaugeMetricFamily(
        "equipoise_stream_mode", "1 for the mode that the stream is in.", labels=["stream", "mode"]
    )
    for status in streams:
        for mode in get_args(Mode):
            modes.add_metric([status.name, mode], float(status.mode == mode))
    return modes


def _gauges(streams: list[StreamStatus]) -> Iterator[Metric]:
    """The monitor's gauges, under the names of its Prometheus writer."""
    families: dict[str, GaugeMetricFamily] = {}
    for status in streams:
        for name, value in status.gauges.items():
            if name not in families:
                families[name] = GaugeMetricFamily(
                    f"equipoise_{_NOT_ALLOWED.sub('_', name)}",
                    f"The monitor's gauge {name} over its last window.",
                    labels=["stream"],
                )
            families[name].add_metric([status.name], value)
    yield from families.values()


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
