import pytest

from equipoise.demo.results import MethodResult
from equipoise.demo.words import (
    adapting,
    calibration,
    certainty,
    comparison,
    demo_findings,
    estimate_note,
    options_note,
    rehearsal_note,
)
from tests.demo.handmade import method, poise, results

BASELINE = method("no adaptation", accuracy=0.5, ece=0.2, entropy=1.5, nll=1.8)
CALMED = method("no adaptation", "median", ece=0.1, entropy=2.5, nll=1.5)


def told(*rows: MethodResult) -> str:
    return " ".join(demo_findings(results(*rows)))


def test_a_win_is_called_a_win() -> None:
    told = comparison(method("poise", ece=0.1, nll=1.5), BASELINE)
    assert "ECE down from 0.200 to 0.100" in told
    assert "better calibrated by both ECE and NLL" in told


def test_a_loss_is_called_a_loss() -> None:
    losing = method("poise", "rehearsed", label="poise", accuracy=0.4, ece=0.3, entropy=2.0, nll=2.5)
    told = comparison(losing, BASELINE)
    assert "accuracy down from 0.500 to 0.400" in told
    assert "ECE up from 0.200 to 0.300" in told
    assert "not better calibrated" in told
    assert "ECE is up on optical, mnist and rendered" in told
    raw = method("poise", label="poise (raw)", accuracy=0.4, ece=0.3, nll=2.5)
    assert (
        "Lowest ECE: no adaptation. Lowest NLL: no adaptation."
        in demo_findings(results(BASELINE, raw, losing)).pop()
    )


def test_a_mixed_result_is_called_mixed() -> None:
    assert "do not both say" in comparison(method("poise", ece=0.1, nll=2.5), BASELINE)


def test_a_difference_that_is_not_shown_is_not_told() -> None:
    told = comparison(method("poise", ece=0.20001, nll=1.8), BASELINE)
    assert "ECE unchanged at 0.200" in told
    assert "not better calibrated" in told


def test_confidence_is_compared_with_accuracy() -> None:
    # Half of the answers have confidence 0.5 and half 0.9: 0.7 on average.
    assert "It is over-certain" in certainty(method("a", accuracy=0.5))
    assert "less certain than it could be" in certainty(method("a", accuracy=0.9))
    assert "about equal" in certainty(method("a", accuracy=0.7))


def test_methods_are_sorted_by_how_they_compare_with_no_adaptation() -> None:
    raw = [
        method("a", accuracy=0.6, ece=0.1),
        method("b", accuracy=0.4, ece=0.3),
        method("c", ece=0.2),
        method("d", accuracy=0.6, ece=0.3),
    ]
    assert adapting(raw, BASELINE, "accuracy") == (
        "Accuracy, 0.500 with no adaptation: higher with a and d (0.600); lower with b (0.400); "
        "the same with c (0.500)."
    )
    assert adapting(raw, BASELINE, "ece") == (
        "ECE before any tempering, 0.200 with no adaptation: higher with b and d (0.300); "
        "lower with a (0.100); the same with c (0.200)."
    )


@pytest.mark.parametrize(
    ("ece", "entropy", "over"), [(0.4, 0.3, True), (0.1, 0.3, False), (0.4, 2.0, False), (0.2, 0.3, False)]
)
def test_less_entropy_with_more_error_is_told(ece: float, entropy: float, over: bool) -> None:
    told = calibration([method("tent", ece=ece, entropy=entropy)], BASELINE)
    assert told.endswith(
        "Worse calibrated and yet more certain, with an entropy below 1.50 bits: tent (0.30 bits)."
        if over
        else f"({ece:.3f})."
    )


def test_tempering_that_helps_all_is_told_without_exceptions() -> None:
    said = told(BASELINE, CALMED, method("tent", ece=0.3), method("tent", "median", ece=0.15, nll=1.0))
    assert "by the median of tau lowers ECE for 2 and NLL for 2 of 2 methods." in said
    assert "ECE was 0.200 to 0.300 and becomes 0.100 to 0.150." in said
    assert "raises" not in said


def test_tempering_that_hurts_is_told_by_method_and_domain() -> None:
    said = told(BASELINE, CALMED, method("tent", ece=0.1), method("tent", "median", ece=0.15, nll=2.0))
    assert "lowers ECE for 1 and NLL for 1 of 2 methods." in said
    assert "It raises ECE for tent (0.100 → 0.150)." in said
    assert "It raises NLL for tent (1.80 → 2.00)." in said
    assert "By domain, it raises ECE on optical for tent; on mnist for tent; on rendered for tent." in said


def test_tempering_that_changes_nothing_neither_lowers_nor_raises() -> None:
    said = told(BASELINE, method("no adaptation", "median"))
    assert "lowers ECE for 0 and NLL for 0 of 1 methods. ECE was 0.200 and becomes 0.200." in said
    assert "raises" not in said


def test_a_domain_of_its_own_is_told_though_the_mean_falls() -> None:
    tempered = method("tent", "median", ece=0.1)
    tempered["domains"] = {**tempered["domains"], "mnist": method("tent", ece=0.25)["domains"]["mnist"]}
    same = [method("norm"), method("norm", "median")]
    said = told(BASELINE, CALMED, method("tent"), tempered, *same)
    assert "It raises ECE" not in said
    assert "By domain, it raises ECE on mnist for tent." in said


@pytest.mark.parametrize(
    ("median", "said"), [(0.05, "down from 0.100 to 0.050"), (0.1, "unchanged"), (0.2, "up from 0.100")]
)
def test_decs_temperings_are_compared(median: float, said: str) -> None:
    found = told(BASELINE, CALMED, *poise(mean_ece=0.1, median_ece=median))
    assert "poise, compared with no adaptation: accuracy unchanged at 0.500, ECE down from 0.200" in found
    assert f"poise (median), compared with poise: ECE {said}" in found


def test_the_best_are_named_and_ties_are_shared() -> None:
    found = demo_findings(results(BASELINE, CALMED, *poise(mean_ece=0.05, median_ece=0.1)))[-1]
    assert "Highest accuracy in this run: no adaptation and poise. Lowest ECE: poise." in found
    assert "Lowest NLL: no adaptation (median), poise and poise (median)." in found
    assert "the median: lowest ECE no adaptation and poise, lowest NLL no adaptation and poise." in found


def test_the_best_with_the_same_tempering_may_be_others() -> None:
    rows = [method("norm", ece=0.15), method("norm", "median", ece=0.08, nll=1.7)]
    found = demo_findings(results(BASELINE, CALMED, *poise(ece=0.12, mean_ece=0.05, median_ece=0.1), *rows))[
        -1
    ]
    assert "Lowest ECE: poise." in found
    assert "the median: lowest ECE norm, lowest NLL no adaptation and poise." in found


def test_a_baseline_alone_has_no_comparisons() -> None:
    assert demo_findings(results(BASELINE)) == [certainty(BASELINE)]


def test_options_that_are_not_defaults_are_named() -> None:
    assert options_note(results(BASELINE)) == "Every method has its default options."
    rows = [BASELINE, method("eata", options={"epsilon": 0.4, "fisher_alpha": 1.0}), method("norm")]
    assert options_note(results(*rows)).endswith("digits: eata has epsilon=0.4 and fisher_alpha=1.")


def test_the_rehearsal_is_told() -> None:
    said = rehearsal_note(results(BASELINE, *poise()))
    assert "on 15 labelled source images that the model was not trained on, in 45 made-up streams" in said


def test_intervals_that_miss_and_answers_unlike_rehearsed_are_told() -> None:
    assert estimate_note(results(BASELINE, *poise())) == (
        "Estimated without labels, after the last batch; the interval contains the true accuracy on 2 of 3 "
        "domains. On rendered the answers were unlike those of the rehearsal: a wider interval."
    )
