"""Gauges for Prometheus."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from equipoise.errors import MissingExtraError

_PREFIX = "equipoise"

_FAMILIES: "WeakKeyDictionary[Any, dict[str, Any]]" = WeakKeyDictionary()
"""The gauges of each registry: a registry takes a name once, and the streams share it."""


class PrometheusWriter:
    """Sets gauges `equipoise_NAME{stream="…"}` in a registry of prometheus-client.

    A gauge that is missing from a call (an accuracy while nothing is estimated) is removed, so that no old
    value is read for a new one. Serve the registry with `prometheus_client.start_http_server` or your own
    /metrics.

    Args:
        stream: the value of the label `stream`.
        registry: of prometheus-client; None for its default one.
    """

    def __init__(self, stream: str = "", registry: Any = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise MissingExtraError(
                "PrometheusWriter needs prometheus-client: pip install 'equipoise[serve]'"
            ) from error
        self._stream, self._gauge = stream, prometheus_client.Gauge
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._families = _FAMILIES.setdefault(self._registry, {})
        self._shown: set[str] = set()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Set the gauges."""
        shown = {**values, "stream_samples": float(step)}
        for name in self._shown - shown.keys():
            self._families[name].remove(self._stream)
        self._shown = set(shown)
        for name, value in shown.items():
            if name not in self._families:
                self._families[name] = self._gauge(
                    f"{_PREFIX}_{name}", f"{name} of a monitored stream", ["stream"], registry=self._registry
                )
            self._families[name].labels(self._stream).set(value)

    def close(self) -> None:
        """Remove the gauges of the stream."""
        for name in self._shown:
            self._families[name].remove(self._stream)
        self._shown = set()
