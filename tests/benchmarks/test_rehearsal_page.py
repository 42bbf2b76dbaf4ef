"""The program behind docs/rehearsal.md: groups of models, and harm by tier."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.rehearsal import rehearsal_page


@pytest.mark.parametrize(
    ("model", "group"),
    [
        ("svhn bn", "svhn bn"),
        ("svhn bn doubtful", "svhn bn doubtful"),
        ("digits usps", "digits"),
        ("pacs mobilenet_v1 photo", "pacs mobilenet_v1"),
    ],
)
def test_a_model_is_of_the_group_with_the_longest_name(model: str, group: str) -> None:
    assert rehearsal_page.group_of(model) == group


def stream(
    model: str, stream: str, accuracy: tuple[float, float], ece: tuple[float, float]
) -> dict[str, Any]:
    """A line of a target in random order: of no adaptation, and of poise."""
    own = {
        "model": model,
        "kind": "target",
        "stream": stream,
        "order": "shuffled",
        "estimate": accuracy[1] + 0.03,
    }
    own |= {"end.accuracy": 0.5, "end.low": 0.4, "end.high": 0.6}
    for at, who in enumerate(("source", "poise")):
        own |= {f"{who}.accuracy": accuracy[at], f"{who}.ece": ece[at]}
    return own


def test_harm_by_tier_is_counted_and_the_worst_is_told() -> None:
    lines = [
        stream("svhn bn", "fog/3", (0.8, 0.9), (0.1, 0.02)),
        stream("svhn bn", "frost/3", (0.8, 0.77), (0.1, 0.15)),
        stream("svhn bn", "fog/5", (0.6, 0.6), (0.2, 0.2)),
        stream("svhn bn doubtful", "fog/3", (0.1, 0.1), (0.3, 0.3)),
    ]
    rows = rehearsal_page.tiers(pd.DataFrame(lines)).splitlines()[2:]
    name = "SVHN-C, ResNet with batch norm"
    assert rows == [
        f"| {name} | 3 | 2 | .800 → .835 | .100 → .085 | .030 | 100 % | 1 | +0.050 | 1 | +0.030 |",
        f"| {name} | 5 | 1 | .600 → .600 | .200 → .200 | .030 | 100 % | 0 | +0.000 | 0 | +0.000 |",
        f"| {name}, under-confident | 3 | 1 | .100 → .100 | .300 → .300 "
        "| .030 | 100 % | 0 | +0.000 | 0 | +0.000 |",
    ]
