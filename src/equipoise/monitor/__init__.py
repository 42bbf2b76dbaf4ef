"""Watches a stream of answers: gauges without labels, truth when labels come, writers for dashboards."""

from equipoise.monitor.monitor import Monitor
from equipoise.monitor.writers.protocol import Writer

__all__ = ["Monitor", "Writer"]
