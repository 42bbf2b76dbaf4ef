"""Watches a stream of answers: gauges without labels, truth when labels come, writers for dashboards."""

from equipoise.production.monitor.monitor import Monitor
from equipoise.production.monitor.writers import (
    JsonLinesWriter,
    MLflowWriter,
    OpenTelemetryWriter,
    PrometheusWriter,
    TensorBoardWriter,
    WandbWriter,
    Writer,
)

__all__ = [
    "JsonLinesWriter",
    "MLflowWriter",
    "Monitor",
    "OpenTelemetryWriter",
    "PrometheusWriter",
    "TensorBoardWriter",
    "WandbWriter",
    "Writer",
]
