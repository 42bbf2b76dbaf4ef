"""Gauges for Weights & Biases."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from equipoise.errors import MissingExtraError


class WandbWriter:
    """Logs gauges as `monitor/NAME` to a run of W&B, with the number of samples as `monitor/step`.

    W&B's own step must grow from call to call, also over what the program logs beside; so it is left alone.

    Args:
        run: a run; None for the current one, `wandb.run`.
    """

    def __init__(self, run: Any = None) -> None:
        try:
            wandb = import_module("wandb")
        except ImportError as error:
            raise MissingExtraError("WandbWriter needs W&B: pip install wandb") from error
        self._to = wandb if run is None else run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the gauges of a step."""
        self._to.log({**{f"monitor/{name}": value for name, value in values.items()}, "monitor/step": step})

    def close(self) -> None:
        """Nothing: the run belongs to the program."""
