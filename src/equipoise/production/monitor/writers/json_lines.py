"""Gauges as JSON lines."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path


class JsonLinesWriter:
    """Appends a line of JSON for each call: time (seconds since 1970), step, and the gauges by name.

    A number that is not finite is null, as JSON has no other. The file is opened for each line: it may be
    moved away at any time, and a new one begins.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._path.open("a", encoding="utf-8"):
            pass  # a path that cannot be written is refused now

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "step": step, **plain}) + "\n")

    def close(self) -> None:
        """Nothing: each line is written already."""
