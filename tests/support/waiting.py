"""Waits for what happens in another thread or process."""

import time
from collections.abc import Callable

HANG = 300.0
"""Seconds that no wait of a test takes, however busy the machine is: what takes longer never ends."""


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Return when something has happened; fail if it never does."""
    end = time.monotonic() + HANG
    while not happened():
        assert time.monotonic() < end, f"waited {HANG:.0f} s in vain: {what}"
        time.sleep(0.01)
