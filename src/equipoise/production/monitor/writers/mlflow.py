"""Gauges for MLflow."""

from collections.abc import Mapping
from importlib import import_module

from equipoise.errors import MissingExtraError


class MLflowWriter:
    """Logs metrics to a run of MLflow, one call for all gauges; with a remote server the call waits for it.

    Args:
        run: the id of the run; None for the active one.
    """

    def __init__(self, run: str | None = None) -> None:
        try:
            self._mlflow = import_module("mlflow")
        except ImportError as error:
            raise MissingExtraError("MLflowWriter needs MLflow: pip install mlflow") from error
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._run)

    def close(self) -> None:
        """Nothing: the run belongs to the program."""
