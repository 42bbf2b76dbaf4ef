"""The events of a guard, as far as a monitor reads them."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol, TypeVar


class Acted(Protocol):
    """An event of a guard, as far as a monitor reads it."""

    @property
    def action(self) -> str:
        """The name of the action."""


_Event = TypeVar("_Event")


def events_after(events: Sequence[_Event], last: _Event | None) -> list[_Event]:
    """The events that follow the `last` one, oldest first; all of them where it is not among them."""
    return list(takewhile(lambda event: event != last, reversed(events)))[::-1]
