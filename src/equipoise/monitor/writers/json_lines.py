"""Gauges as JSON lines."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path


class JsonLinesWriter:
    """Appends a line of JSON for each call: time (seconds since 1970), step, and the gauges by name.

    A number that is not finite is null, as JSON has no other. Each line is flushed, so that a reader that
    follows the file sees it at once.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"time": time.time(), "step": step, **plain}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
