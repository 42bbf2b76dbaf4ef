"""Sentences of the page: the counts in them against scores typed in here."""

from typing import Any

import pytest

from equipoise.report.figures.sections import Section, sections
from equipoise.report.page.words import (
    cautions,
    certainty_caption,
    findings,
    run_cautions,
    section_findings,
    tempering_counts,
)
from tests.report.plausible import made
from tests.report.writer import line


def only(lines: list[dict[str, Any]]) -> Section:
    (section,) = sections(made(lines))
    return section


def told(lines: list[dict[str, Any]]) -> str:
    return " ".join(findings(sections(made(lines)), "online"))


BASE = line("source", entropy=1.0, ece=0.2)


@pytest.mark.parametrize(
    ("entropy", "ece", "certain", "worse"),
    [(0.5, 0.3, 1, 1), (0.5, 0.1, 1, 0), (1.5, 0.3, 0, 0), (0.9999, 0.3, 0, 0)],
)
def test_over_certain_is_more_certain_and_worse_calibrated(
    entropy: float, ece: float, certain: int, worse: int
) -> None:
    sentence = told([BASE, line("tent", entropy=entropy, ece=ece)])
    assert f"more certain than no adaptation in {certain} of 1 case" in sentence
    assert (f"; in {worse} of these" in sentence) == bool(certain)
    assert ("of these" in sentence) == bool(certain)  # nothing to say about none


def test_methods_are_compared_on_what_both_have() -> None:
    # On sketch tent is far better, but source has nothing there.
    lines = [BASE, line("tent", entropy=0.5, ece=0.3), line("tent", target="sketch", entropy=9.0, ece=0.0)]
    assert "in 1 of 1 case; in 1 of these" in told(lines)


def test_without_anything_shared_nothing_is_said() -> None:
    assert told([BASE, line("tent", target="sketch", entropy=0.5, ece=0.3)]) == ""


def test_temperings_are_counted_over_cases() -> None:
    lines = [
        line("tent", "none", ece=0.3, nll=2.0),
        line("tent", "mean", ece=0.1, nll=2.5),
        line("tent", "median", ece=0.2, nll=1.0),
        line("dec", "none", ece=0.3, nll=2.0),
        line("dec", "mean", ece=0.4, nll=1.0),
        line("dec", "fixed", ece=0.1, nll=1.0),
        line("dec", "rehearsed", ece=0.1, nll=2.5),
    ]
    assert tempering_counts(sections(made(lines)), "online") == [
        ("mean instead of raw", "2", "1", "1", "1", "1"),
        ("median instead of raw", "1", "1", "0", "1", "0"),
        ("rehearsed instead of raw", "1", "1", "0", "0", "1"),
        ("fixed instead of raw", "1", "1", "0", "1", "0"),
        ("median instead of mean", "1", "0", "1", "1", "0"),
        ("mean instead of fixed", "1", "0", "1", "0", "0"),
    ]
    assert "the mean of τ over the batch lowers ECE in 1 and NLL in 1 of 2 cases" in told(lines)


def test_dec_is_held_against_every_other_method_raw() -> None:
    dec = line("dec", "mean", ece=0.1, nll=1.0, accuracy=0.5)
    lines = [BASE, line("tent", ece=0.05, nll=2.0, accuracy=0.4), dec]
    lines += [line("dec-mine", method="dec", ece=0.0, nll=0.0, accuracy=0.9)]  # no rival of itself
    sentence = told(lines)
    # By ECE tent is better; by NLL nobody is; by accuracy source has as much.
    assert "by ECE in 0 of 1, by NLL in 1 of 1 and by accuracy in 0 of 1" in sentence


def test_protocols_are_not_mixed() -> None:
    lines = [BASE, line("tent", protocol="after-pass", entropy=0.5, ece=0.3)]
    assert findings(sections(made(lines)), "online") == []
    assert findings(sections(made(lines)), "after-pass") == []


def test_a_section_says_how_sure_the_source_is() -> None:
    # The writer's ten answers have a confidence of 9.9 in sum, and 5 are right.
    sentences = section_findings(only([BASE]), "online")
    assert sentences == [
        "Without adaptation, 50.0% of the answers are right, at an average confidence of 99.0%: over-certain."
    ]
    group = only([BASE]).everything[0]
    assert certainty_caption(group) == "99% sure, 50% right"


@pytest.mark.parametrize(("total", "words"), [(5.1, "about equal"), (3.0, "less certain than it could be")])
def test_a_section_says_so_if_the_source_is_not_over_certain(total: float, words: str) -> None:
    changed = BASE | {"reliability": {"count": [10], "confidence": [total], "correct": [5]}}
    assert words in section_findings(only([changed]), "online")[0]


def test_a_section_names_the_over_certain_and_the_best() -> None:
    lines = [BASE, line("tent", entropy=0.5, ece=0.3, nll=1.0), line("norm", entropy=1.2, ece=0.3, nll=1.0)]
    _, certain, best = section_findings(only(lines), "online")
    assert certain.endswith("tent (0.50 bits, 0.300); that is 1 of 2 methods.")
    assert best == (
        "Lowest ECE: source (raw), 0.200; lowest NLL: norm (raw) and tent (raw), 1.000; "
        "highest accuracy: source, norm and tent, 0.500."
    )


def test_what_is_not_complete_does_not_compete() -> None:
    both = [line(label, target=target) for label in ("source", "norm") for target in ("photo", "sketch")]
    best = section_findings(only([*both, line("tent", ece=0.0)]), "online")[-1]
    assert "tent" not in best
    assert best.endswith("1 row with less than all shifts and seeds left out.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{}], "One seed and one domain"),
        ([{"target": name} for name in "abc"], "One seed: small differences may be chance."),
        ([{"target": name, "seed": seed} for name in "abc" for seed in (0, 1)], ""),
        (
            [{"target": name, "seed": seed, "limit": 9} for name in "abc" for seed in (0, 1)],
            "Few images: small",
        ),
    ],
)
def test_few_data_are_said_to_be_few(changes: list[dict[str, Any]], words: str) -> None:
    told = cautions(only([line(**each) for each in changes]))
    assert told.startswith(words)
    assert bool(told) == bool(words)


def test_what_was_left_out_is_said() -> None:
    other = line("source", data="mine")
    results = made([other], failures=(line("tent", data="mine", error="boom"),), damaged=2, superseded=1)
    single, failures, damaged, superseded = run_cautions(results, sections(results))
    assert single.startswith("All results are of a single seed")
    assert failures == "1 cell failed; numbers that lack them are marked ‡."
    assert damaged == "Left out: 2 lines of the files that could not be read."
    assert superseded.startswith("Left out: 1 older result")


def test_a_sentence_and_a_caption_agree_with_the_tables_averages() -> None:
    def bins(count: int, right: int) -> dict[str, Any]:
        sure = 0.9 * count
        return {"reliability": {"count": [0, count], "confidence": [0.0, sure], "correct": [0, right]}}

    few = line(target="photo", accuracy=0.9, ece=0.0) | bins(10, 9)
    many = line(target="sketch", accuracy=0.2, ece=0.7) | bins(1000, 200)
    section = only([few, many])
    (group,) = section.everything
    assert group.mean("accuracy") == pytest.approx(0.55)
    assert section_findings(section, "online")[0].startswith(
        "Without adaptation, 55.0% of the answers are right, at an average confidence of 90.0%"
    )
    assert certainty_caption(group) == "90% sure, 55% right"
    assert group.mean("ece") + 1e-9 >= 0.9 - 0.55  # confidence and accuracy never lie further apart than ECE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["PACS is not complete: 2 of 4 domains, 1 of 3 seeds."]),
        ({"epochs": 2}, ["PACS is a trial: 2 epochs (the paper: 15); 2 of 4 domains, 1 of 3 seeds."]),
        ({"data": "mine"}, []),
    ],
)
def test_a_trial_and_a_part_of_the_papers_runs_are_said_to_be_so(
    changes: dict[str, Any], words: list[str]
) -> None:
    results = made([line(target=target, **changes) for target in ("photo", "sketch")])
    *told, single = run_cautions(results, sections(results))
    assert told == words
    assert "a single seed" in single


def test_networks_are_told_apart_only_where_they_differ() -> None:
    lines = [line(backbone=name) for name in ("efficientnet_b0", "mobilenet_v1")]
    alike, differing = made(lines), made([*lines, line(backbone="mobilenet_v1", seed=1)])
    assert run_cautions(alike, sections(alike))[0] == "PACS is not complete: 1 of 4 domains, 1 of 3 seeds."
    assert run_cautions(differing, sections(differing))[:2] == [
        "PACS with EfficientNetB0 is not complete: 1 of 4 domains, 1 of 3 seeds.",
        "PACS with MobileNet is not complete: 1 of 4 domains, 2 of 3 seeds.",
    ]


def test_all_that_the_paper_ran_is_no_part() -> None:
    lines = [line(target=target, seed=seed) for target in "abcd" for seed in (0, 1, 2)]
    assert run_cautions(made(lines), sections(made(lines))) == []
