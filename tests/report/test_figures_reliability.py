import pytest

from equipoise.bench.schema import ReliabilitySums
from equipoise.report.figures.reliability import Bins, bins_of, reliability_diagram
from equipoise.report.figures.sections import Shares, pooled
from equipoise.report.numbers.runs import ShiftKey
from tests.report.drawn import Parsed


def halves(confidence: float, accuracy: float) -> Bins:
    """Two bins; all answers are in the upper one."""
    return Bins(
        lower=[0.0, 0.5],
        upper=[0.5, 1.0],
        count=[0, 4],
        confidence=[None, confidence],
        accuracy=[None, accuracy],
    )


def test_bars_show_accuracy_and_the_gap_to_confidence() -> None:
    diagram = reliability_diagram(halves(0.9, 0.5), "dec")
    assert len(Parsed(diagram).all("rect", "bar")) == 1
    assert 'class="bar" x="99.0" y="71.0" width="63.0" height="63.0"' in diagram
    assert 'class="over" x="99.0" y="20.6" width="63.0" height="50.4"' in diagram
    assert 'class="under"' in reliability_diagram(halves(0.5, 0.9), "dec")


def test_a_small_one_has_the_same_proportions_and_less_text() -> None:
    drawn = Parsed(reliability_diagram(halves(0.9, 0.5), "dec", side=92, named=False))
    bar, gap = drawn.all("rect", "bar")[0], drawn.all("rect", "over")[0]
    assert (bar["width"], bar["height"]) == (46, 46)
    assert gap["height"] == pytest.approx(0.4 * 92, abs=0.05)
    assert [each.text for each in drawn.all("text")] == ["0", "1", "0", "1"]


def test_means_come_from_sums() -> None:
    bins = bins_of(Shares(count=[0, 0.4, 1.0], confidence=[0.0, 0.2, 0.9], correct=[0, 0.1, 0.9]))
    assert bins["confidence"] == [None, 0.5, 0.9]
    assert bins["accuracy"] == [None, 0.25, 0.9]
    assert bins["lower"] == pytest.approx([0, 1 / 3, 2 / 3])
    assert bins["upper"] == pytest.approx([1 / 3, 2 / 3, 1])


def test_pooling_counts_every_shift_the_same_and_every_seed_of_one() -> None:
    small = ReliabilitySums(count=[1, 1], confidence=[0.2, 0.8], correct=[0, 1])
    large = ReliabilitySums(count=[300, 100], confidence=[90.0, 90.0], correct=[100, 80])
    again = ReliabilitySums(count=[0, 4], confidence=[0.0, 3.6], correct=[0, 2])
    found = pooled({ShiftKey("a", None): [small], ShiftKey("b", None): [large, again]})
    assert found["count"] == pytest.approx([(0.5 + (0.75 + 0) / 2) / 2, (0.5 + (0.25 + 1) / 2) / 2])
    assert found["confidence"] == pytest.approx([(0.1 + 0.225 / 2) / 2, (0.4 + (0.225 + 0.9) / 2) / 2])
    assert found["correct"] == pytest.approx([(0 + 0.25 / 2) / 2, (0.5 + (0.2 + 0.5) / 2) / 2])


def test_no_answers_are_an_empty_diagram() -> None:
    nothing = Bins(lower=[0.0], upper=[1.0], count=[0], confidence=[None], accuracy=[None])
    assert not Parsed(reliability_diagram(nothing, "dec")).all("rect")
