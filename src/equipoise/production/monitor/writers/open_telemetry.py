"""Gauges as OpenTelemetry metrics."""

from collections.abc import Mapping
from typing import Any

from equipoise.errors import MissingExtraError

_PREFIX = "equipoise"


class OpenTelemetryWriter:
    """Records gauges `equipoise.NAME` with the attribute `stream`, through the metrics API of OpenTelemetry.

    Without an SDK that the program has set up, the API drops them silently.

    Args:
        stream: the value of the attribute `stream`.
        meter: an OpenTelemetry meter; None for one named "equipoise" of the global provider.
    """

    def __init__(self, stream: str = "", meter: Any = None) -> None:
        if meter is None:
            try:
                from opentelemetry import metrics
            except ImportError as error:
                raise MissingExtraError(
                    "OpenTelemetryWriter needs OpenTelemetry: pip install opentelemetry-sdk"
                ) from error
            meter = metrics.get_meter(_PREFIX)
        self._meter, self._attributes = meter, {"stream": stream}
        self._gauges: dict[str, Any] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record the gauges."""
        for name, value in {**values, "stream_samples": float(step)}.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"{_PREFIX}.{name}")
            self._gauges[name].set(value, self._attributes)

    def close(self) -> None:
        """Nothing: the provider exports, and belongs to the program."""
