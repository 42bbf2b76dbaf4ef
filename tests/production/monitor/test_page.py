"""docs/monitoring.md is made from its files, and the alarms are what it says."""

from pathlib import Path

import pytest

from benchmarks.monitoring import alarms, monitoring_page

ROOT = Path(__file__).parents[3]


def test_the_page_is_that_of_its_files() -> None:
    assert (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8") == monitoring_page.page()


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
