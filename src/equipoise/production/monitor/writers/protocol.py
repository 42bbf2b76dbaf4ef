"""The protocol of writers, and the one place where they may fail."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from equipoise.core.lock import CallLock

_LOG = logging.getLogger(__name__)


class Writer(Protocol):
    """Anything that takes the gauges of a monitor."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take gauges by name; `step` is the number of samples so far."""

    def close(self) -> None:
        """Write what is left."""


class Writers:
    """Writers whose failures (a full disk, a network that is down) break nothing.

    The first failure of each is logged as a warning; all are counted.

    Attributes:
        failures: the number of calls that failed.
    """

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = tuple(writers)
        self._failed: set[int] = set()
        self._lock = CallLock()
        self.failures = 0

    def __bool__(self) -> bool:
        return bool(self._writers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Give the values to each writer."""
        self._attempt(lambda writer: writer.log(values, step))

    def close(self) -> None:
        """Close each writer."""
        self._attempt(lambda writer: writer.close())

    def _attempt(self, call: Callable[[Writer], None]) -> None:
        with self._lock:
            for index, writer in enumerate(self._writers):
                if (error := _error_of(call, writer)) is not None:
                    self._note(index, error)

    def _note(self, index: int, error: Exception) -> None:
        self.failures += 1
        if index not in self._failed:
            self._failed.add(index)
            name = type(self._writers[index]).__name__
            _LOG.warning(
                "%s failed and will be tried again, without another warning: %s: %s",
                name,
                type(error).__name__,
                error,
            )


def _error_of(call: Callable[[Writer], None], writer: Writer) -> Exception | None:
    """The error of a call, of whatever kind: a writer may be anybody's."""
    try:
        call(writer)
    except Exception as error:
        return error
    return None
