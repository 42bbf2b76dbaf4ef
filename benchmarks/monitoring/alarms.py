"""The alarms that the validation counts: each a condition on the gauges of a monitor after a batch."""

from collections.abc import Mapping

import equipoise as eq

TOLERANCE = 0.05
"""The accuracy below that of the rehearsal without a shift that is tolerated."""
CLASSES = 0.2
"""The total variation of the classes from those of the start that is tolerated."""
STATISTICS = 0.25
"""The distance of the running statistics from the source model's that is tolerated, in its deviations."""

RULES = ("accuracy", "estimate", "outside", "classes", "statistics")


def alarms(gauges: Mapping[str, float], floor: float) -> dict[str, bool]:
    """Whether each alarm is on, by the gauges and the floor of the accuracy."""
    return {
        "accuracy": gauges["accuracy_high"] < floor,
        "estimate": gauges["accuracy"] < floor - TOLERANCE,
        "outside": gauges["accuracy_inside"] == 0,
        "classes": gauges.get("class_shift", 0.0) > CLASSES,
        "statistics": gauges.get("statistics_shift", 0.0) > STATISTICS,
    }


WORDS = {
    "accuracy": f"surely worse: `accuracy_high` below the rehearsed accuracy without a shift by {TOLERANCE}",
    "estimate": f"probably worse: `accuracy` below it by {2 * TOLERANCE}",
    "outside": "unlike anything rehearsed: `accuracy_inside` is 0",
    "classes": f"other classes: `class_shift` above {CLASSES}",
    "statistics": f"other activations: `statistics_shift` above {STATISTICS}",
}


def floor_of(rehearsal: eq.Rehearsal) -> float:
    """The accuracy that the rehearsal found without a shift, less the tolerance."""
    plain = [run.accuracy for run in rehearsal.runs if run.shift == "none" and run.order == "shuffled"]
    return sum(plain) / len(plain) - TOLERANCE
