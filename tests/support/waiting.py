"""Waits for what happens in another thread or process."""

import time
from collections.abc import Callable
from pathlib import Path

HANG = 600.0
"""Seconds that no wait of a test takes, however busy the machine is: what takes longer never ends."""


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Return when something has happened; fail if it never does."""
    end = time.monotonic() + HANG
    while not happened():
        assert time.monotonic() < end, f"waited {HANG:.0f} s in vain: {what}"
        time.sleep(0.01)


def runs(process: int) -> bool:
    """Whether a process of Linux has not ended; one that has is listed until its parent takes note."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
