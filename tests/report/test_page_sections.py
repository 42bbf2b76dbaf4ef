"""How results are put together: what is averaged over what, and what belongs where."""

from typing import Any

import pytest

from equipoise.report.figures.sections import sections
from equipoise.report.numbers.runs import MethodVariant, ShiftKey
from equipoise.report.page.figures import looks, scatter_figures
from tests.report.drawn import Parsed
from tests.report.plausible import made
from tests.report.writer import line, stream_line

UNEVEN = [
    line("tent", target="photo", seed=0, ece=0.1, entropy=1.0),
    line("tent", target="photo", seed=1, ece=0.3, entropy=2.0),
    line("tent", target="sketch", seed=0, ece=0.6, entropy=3.0),
    line("tent", "mean", target="photo", seed=0, ece=0.05, entropy=4.0),
]


def test_every_domain_counts_the_same_however_many_seeds_it_has() -> None:
    (section,) = sections(made(UNEVEN))
    group = section.groups["online"][MethodVariant("tent", "none")]
    assert group.values("ece") == {("photo", None): pytest.approx(0.2), ("sketch", None): 0.6}
    assert group.mean("ece") == pytest.approx(0.4)  # and not 1/3, the mean of all


def test_two_are_compared_on_what_both_have() -> None:
    (section,) = sections(made(UNEVEN))
    raw, divided = (section.groups["online"][MethodVariant("tent", kind)] for kind in ("none", "mean"))
    assert raw.against(divided, "ece") == (0.1, 0.05)
    (other,) = sections(made([line("dec", target="sketch", seed=9)]))
    assert raw.against(other.everything[0], "ece") is None


def test_points_are_drawn_at_the_averages() -> None:
    parts = sections(made(UNEVEN))
    parsed = Parsed(scatter_figures(parts[0], "online", looks(parts)))
    average, photo, sketch = (each.text for each in parsed.all("title"))
    # Entropy: (1.5 + 3) / 2 raw; the divided ones are of photo alone, so the name has a star.
    assert "tent* from 2.25 / 0.400 to 4.00 / 0.050." in average
    assert "tent* from 1.50 / 0.200 to 4.00 / 0.050." in photo
    assert "tent* at 3.00 / 0.600." in sketch
    # Both axes end above the largest: 4 bits give one up to 5, an ECE of 0.4 one up to 0.5.
    hollow = parsed.all("circle", "hollow")[0]
    assert (hollow["cx"], hollow["cy"]) == pytest.approx(
        (40 + 182 * 2.25 / 5, 10 + 230 * (1 - 0.4 / 0.5)), abs=0.06
    )


@pytest.mark.parametrize(
    "difference",
    [{"data": "b"}, {"backbone": "b"}, {"order": "sorted"}, {"limit": 9}, {"epochs": 1}, {"input_size": 9}],
)
def test_what_must_not_be_averaged_stands_apart(difference: dict[str, Any]) -> None:
    several = sections(made([line(), line(**difference)], streams=(stream_line(),)))
    assert len(several) == 2
    assert sum(len(section.streams) for section in several) == 1
    assert all(len(section.everything) == 1 for section in several)


def test_protocols_stand_apart_within_a_section() -> None:
    (section,) = sections(made([line(protocol="after-pass", ece=0.1), line(protocol="online", ece=0.2)]))
    assert [(name, next(iter(groups.values())).mean("ece")) for name, groups in section.groups.items()] == [
        ("online", 0.2),
        ("after-pass", 0.1),
    ]


def test_bins_belong_to_the_results_of_their_variant() -> None:
    def bins(count: int) -> dict[str, Any]:
        return {"reliability": {"count": [count], "confidence": [count / 2], "correct": [count]}}

    lines = [line("tent", batch_size=1) | bins(3), line("tent", batch_size=50) | bins(7)]
    (section,) = sections(made(lines))
    found = {
        group.label: [part["count"] for several in group.bins.values() for part in several]
        for group in section.everything
    }
    assert found == {"tent [batch_size=1]": [[3]], "tent [batch_size=50]": [[7]]}


def test_shifts_with_a_tier_are_placed_by_it() -> None:
    (section,) = sections(made([line(tier=2), line(target="fog", tier=10), line(target="clean")]))
    assert section.places == ["2", "10"]
    assert section.place(ShiftKey("fog", 10)) == "10"
    assert section.place(ShiftKey("clean", None)) is None
    (plain,) = sections(made([line(), line(target="fog")]))
    assert plain.places == ["fog", "photo"]
