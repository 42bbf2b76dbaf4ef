"""Watches a stream of answers: gauges without labels, truth when labels come, writers for dashboards."""

from equipoise.monitor.monitor import Monitor
from equipoise.monitor.writers.json_lines import JsonLinesWriter
from equipoise.monitor.writers.mlflow import MLflowWriter
from equipoise.monitor.writers.open_telemetry import OpenTelemetryWriter
from equipoise.monitor.writers.prometheus import PrometheusWriter
from equipoise.monitor.writers.protocol import Writer
from equipoise.monitor.writers.tensorboard import TensorBoardWriter
from equipoise.monitor.writers.wandb import WandbWriter

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
