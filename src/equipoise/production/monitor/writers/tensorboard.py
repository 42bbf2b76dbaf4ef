"""Gauges for TensorBoard."""

import os
from collections.abc import Mapping

from equipoise.errors import MissingExtraError


class TensorBoardWriter:
    """Writes scalars `monitor/NAME` into event files.

    Args:
        folder: of the event files, `tensorboard --logdir FOLDER` shows it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoardWriter needs TensorBoard: pip install tensorboard") from error
        self._writer = SummaryWriter(os.fspath(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the scalars of a step."""
        for name, value in values.items():
            self._writer.add_scalar(f"monitor/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
