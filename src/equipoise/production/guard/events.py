"""The record of an action of the guard."""

from dataclasses import dataclass
from typing import Literal

Action = Literal["hold", "release", "rollback", "reset", "snapshot"]
"""An action on an adapter.

"hold": answer and learn nothing. "release": learn again. "rollback": go back to a snapshot. "reset": go back
to the source model. "snapshot": one was taken because a person asked for it.
"""

REQUEST = "request"
"""The trigger of an action that a person asked for."""


@dataclass(frozen=True)
class Event:
    """An action on an adapter, and its cause.

    Attributes:
        time: seconds since 1970, for the reader alone: no decision depends on a clock.
        batch: the number of the batch after which it happened; 0 before the first.
        action: "hold", "release", "rollback", "reset" or "snapshot".
        trigger: "estimates", "labels", "collapse", "disagreement", "below source" or "runaway";
            "cool-down" where a hold ends; "request" where a person asked for it.
        reason: the cause in words.
    """

    time: float
    batch: int
    action: Action
    trigger: str
    reason: str

    def __str__(self) -> str:
        """The event in a line."""
        return f"batch {self.batch}: {self.action} ({self.trigger}): {self.reason}"
