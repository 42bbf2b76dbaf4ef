"""The goals of docs/results.md: each is decided by its own numbers, at the places that it names."""

import pandas as pd
import pytest

from benchmarks.results import goals, measured, page, robustness
from benchmarks.results.measured import Measured, PaperNumber, Place
from benchmarks.results.robustness import STREAMS
from tests.support.results_frames import made_up, made_up_robust

DIGITS = Place("digits", "smallcnn")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measured.read(made_up(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def results(everything: Measured) -> Measured:
    """Digits alone, which is quicker."""
    return everything._replace(cells=everything.cells[everything.cells["data"] == "digits"])


def with_score(results: Measured, name: str, tempering: str, scores: dict[str, float]) -> Measured:
    """The results with other scores of a method with a tempering, on Digits, online."""
    cells = results.cells.copy()
    rows = (cells["data"] == "digits") & (cells["protocol"] == "online")
    rows &= (cells["name"] == name) & (cells["tempering"] == tempering)
    for metric, value in scores.items():
        cells.loc[rows, metric] = value
    return results._replace(cells=cells)


def without(results: Measured, **values: object) -> Measured:
    """The results without the rows that have all of some values."""
    cells = results.cells
    gone = pd.Series(data=True, index=cells.index)
    for name, value in values.items():
        gone &= cells[name] == value
    return results._replace(cells=cells[~gone])


def missed(results: Measured) -> list[tuple[str, Place]]:
    """The goals that are missed, and where."""
    return [(each.goal, each.place) for each in goals.decisions(results) if each.reached is False]


def test_the_made_up_results_reach_every_goal(results: Measured) -> None:
    made = goals.decisions(results)
    assert {each.goal for each in made if each.reached} == set(goals.GOALS)
    assert missed(results) == []


@pytest.mark.parametrize(
    ("goal", "method", "enough", "too_much"),
    [
        ("ece", ("poise", "rehearsed"), {"ece": 0.0499}, {"ece": 0.0501}),
        ("third", ("sotta", "none"), {"ece": 0.094}, {"ece": 0.092}),  # poise has .031
        ("nll", ("tent", "median"), {"nll": 1.101}, {"nll": 1.1}),  # poise has 1.1
        ("nll-rehearsed", ("t3a", "rehearsed"), {"nll": 1.095}, {"nll": 1.094}),
        ("accuracy", ("eta", "none"), {"accuracy": 0.665}, {"accuracy": 0.667}),  # poise has .661
        ("domain", ("source", "none"), {"accuracy": 0.66}, {"accuracy": 0.662}),  # poise has .651 on mnist
        ("paper-nll", ("poise", "rehearsed"), {"nll": 1.42}, {"nll": 1.43}),  # the paper has 1.422
    ],
)
def test_a_goal_is_missed_alone(
    results: Measured,
    goal: str,
    method: tuple[str, str],
    enough: dict[str, float],
    too_much: dict[str, float],
) -> None:
    assert missed(with_score(results, *method, enough)) == []
    assert missed(with_score(results, *method, too_much)) == [(goal, DIGITS)]


@pytest.mark.parametrize(("papers", "lost"), [(0.032, []), (0.031, [("paper-ece", DIGITS)])])
def test_the_papers_own_ece_must_be_beaten(
    results: Measured, monkeypatch: pytest.MonkeyPatch, papers: float, lost: list[tuple[str, Place]]
) -> None:
    printed = measured.printed

    def other(place: Place, label: str, metric: str) -> PaperNumber | None:
        asked = (place, label, metric) == (DIGITS, "dec", "ece")
        return PaperNumber(papers, 3, doubtful=False) if asked else printed(place, label, metric)

    monkeypatch.setattr(goals, "printed", other)
    assert missed(with_score(results, "poise", "rehearsed", {"ece": 0.031})) == lost


def test_the_papers_nll_is_no_goal_for_a_less_accurate_model(results: Measured) -> None:
    worse = with_score(results, "source", "none", {"accuracy": 0.588})  # the paper has .589
    (decision,) = [
        each for each in goals.decisions(worse) if (each.goal, each.place) == ("paper-nll", DIGITS)
    ]
    assert decision.reached is None
    assert "1 do not apply" in goals.goal_table([decision])


@pytest.mark.parametrize(
    ("lost", "lost_after", "source", "expected"),
    [
        (0.049, 0.049, 0.8, []),
        (0.051, 0.0, 0.8, [("collapse", DIGITS)]),
        (0.0, 0.051, 0.8, [("collapse", DIGITS)]),
        (0.051, 0.0, 0.1, [("collapse", DIGITS)]),  # a source model below chance hides nothing
        (0.0, 0.0, 0.9, [("collapse", DIGITS)]),
    ],
)
def test_collapse_is_below_no_adaptation_or_below_poise_on_the_same_images_shuffled(
    results: Measured, lost: float, lost_after: float, source: float, expected: list[tuple[str, Place]]
) -> None:
    assert missed(results._replace(robust=made_up_robust(lost, lost_after, source))) == expected


def test_a_stream_is_compared_with_one_of_the_same_images() -> None:
    bases = {name: robustness.base_of(name) for name in STREAMS}
    assert bases["sorted by class"] == bases["ten passes"] == "batches of 50"
    assert bases["sorted by class, batches of 1"] == "batches of 1"  # of which there are fewer images
    assert bases["batches of 1"] == bases["batches of 50"] == bases["abrupt changes"] == ""
    robust = made_up_robust()
    robust.loc[robust["stream"] == "abrupt changes", ["accuracy", "after"]] -= 0.3
    assert robustness.collapsed(robust).empty
    assert "| -.060 (usps) |" in page.robustness_tables(made_up_robust(lost=0.06))


def test_no_collapse_is_claimed_of_streams_that_were_not_run(results: Measured) -> None:
    robust = made_up_robust()
    for part in (robust.iloc[:0], robust[robust["method"] == "poise"], robust.iloc[2:]):
        made = goals.decisions(results._replace(robust=part))
        assert "collapse" not in {each.goal for each in made}
    assert robustness.collapsed(robust).empty
    lost = made_up_robust(lost=0.06, source=0.7)
    assert "→ usps, sorted by class | .740 | .700 | .800 |" in page.collapse_table(lost)


@pytest.mark.parametrize("gone", [{}, {"target": "svhn"}])
def test_a_goal_against_every_rival_needs_all_of_them_to_be_reached_and_one_to_be_missed(
    results: Measured, gone: dict[str, str]
) -> None:
    part = without(results, data="digits", name="tent", **gone)
    about_rivals = {"third", "nll", "nll-rehearsed", "accuracy"}
    there = {each.goal for each in goals.decisions(part) if each.place == DIGITS}
    assert there & about_rivals == set()
    assert missed(with_score(part, "eta", "mean", {"nll": 1.0})) == [("nll", DIGITS)]


@pytest.mark.parametrize("gone", [{"name": "poise", "target": "svhn"}, {"target": "svhn"}])
def test_nothing_is_decided_where_a_domain_was_not_run(results: Measured, gone: dict[str, str]) -> None:
    part = without(results, data="digits", **gone)
    assert {each.goal for each in goals.decisions(part) if each.place == DIGITS} == {"collapse"}


def test_a_domain_is_compared_on_the_seeds_that_both_have(results: Measured) -> None:
    part = without(results, data="digits", name="poise", seed=1)
    better = part.cells.assign(
        accuracy=part.cells["accuracy"].where(part.cells["seed"] == 0, part.cells["accuracy"] + 0.3)
    )
    assert ("domain", DIGITS) not in missed(part._replace(cells=better))


def test_goals_are_counted_at_every_place_that_they_name(everything: Measured) -> None:
    made = goals.decisions(everything)
    lines = dict(line.strip("| ").split(" | ", 1) for line in goals.goal_table(made).splitlines())
    assert lines[goals.GOALS["ece"]].startswith("3 of 3, 10 not run")  # Digits, and two tiers of MobileNet
    assert lines[goals.GOALS["nll"]].startswith("2 of 2, 3 not run")
    assert lines[goals.GOALS["collapse"]].startswith("1 of 1, 2 not run")
    assert sum(len(goals.named(goal)) for goal in goals.GOALS) == 4 * 13 + 4 * 5 + 3
    whole = [goals.Decision("collapse", place, "", reached=True) for place in goals.named("collapse")]
    assert "| ✓ 3 of 3 |" in goals.goal_table(whole)
    assert "| ✗ 2 of 3 |" in goals.goal_table([whole[0]._replace(reached=False), *whole[1:]])
