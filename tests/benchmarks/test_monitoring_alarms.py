"""The alarms of docs/monitoring.md are what it says."""

import pytest

from benchmarks.monitoring import alarms


@pytest.mark.parametrize(
    ("gauges", "on"),
    [
        ({}, set()),
        ({"accuracy_high": 0.79}, {"accuracy"}),
        ({"accuracy": 0.74}, {"estimate"}),
        ({"accuracy_inside": 0.0}, {"outside"}),
        ({"class_shift": 0.21}, {"classes"}),
        ({"statistics_shift": 0.26}, {"statistics"}),
        ({"class_shift": float("nan")}, set()),
    ],
)
def test_alarms(gauges: dict[str, float], on: set[str]) -> None:
    calm = {"accuracy": 0.85, "accuracy_high": 0.9, "accuracy_inside": 1.0}
    found = alarms.alarms({**calm, **gauges}, floor=0.8)
    assert {rule for rule, holds in found.items() if holds} == on
    assert tuple(found) == alarms.RULES == tuple(alarms.WORDS)
