"""Watches a stream of answers: gauges without labels, truth when labels come, writers for dashboards."""

from equipoise.production.monitor.monitor import Monitor
from equipoise.production.monitor.writers.json_lines import JsonLinesWriter
from equipoise.production.monitor.writers.mlflow import MLflowWriter
from equipoise.production.monitor.writers.open_telemetry import OpenTelemetryWriter
from equipoise.production.monitor.writers.prometheus import PrometheusWriter
from equipoise.production.monitor.writers.protocol import Writer
from equipoise.production.monitor.writers.tensorboard import TensorBoardWriter
from equipoise.production.monitor.writers.wandb import WandbWriter

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
