from equipoise.demo.words import certainty, comparison, findings
from tests.demo.handmade import method, results

BASELINE = method("no adaptation", accuracy=0.5, ece=0.2, entropy=1.5, nll=1.8)


def test_a_win_is_called_a_win() -> None:
    told = comparison(method("dec", ece=0.1, nll=1.5), BASELINE)
    assert "ECE down from 0.200 to 0.100" in told
    assert "better calibrated by both ECE and NLL" in told


def test_a_loss_is_called_a_loss() -> None:
    losing = method("dec", accuracy=0.4, ece=0.3, entropy=2.0, nll=2.5)
    told = comparison(losing, BASELINE)
    assert "accuracy down from 0.500 to 0.400" in told
    assert "ECE up from 0.200 to 0.300" in told
    assert "not better calibrated" in told
    assert "ECE is up on optical and mnist and rendered" in told
    assert "Lowest ECE: no adaptation. Lowest NLL: no adaptation." in findings(results(BASELINE, losing))[-1]


def test_a_mixed_result_is_called_mixed() -> None:
    assert "do not both say" in comparison(method("dec", ece=0.1, nll=2.5), BASELINE)


def test_less_entropy_with_more_error_is_called_over_certain() -> None:
    assert "over-certain" in comparison(method("tent", ece=0.4, entropy=0.3, nll=3.0), BASELINE)
    assert "over-certain" not in comparison(method("dec", ece=0.1, entropy=0.3, nll=1.0), BASELINE)


def test_a_difference_that_is_not_shown_is_not_told() -> None:
    told = comparison(method("dec", ece=0.20001, nll=1.8), BASELINE)
    assert "ECE unchanged at 0.200" in told
    assert "not better calibrated" in told


def test_confidence_is_compared_with_accuracy() -> None:
    # Half of the answers have confidence 0.5 and half 0.9: 0.7 on average.
    assert "It is over-certain" in certainty(method("a", accuracy=0.5))
    assert "less certain than it could be" in certainty(method("a", accuracy=0.9))
    assert "about equal" in certainty(method("a", accuracy=0.7))


def test_ties_are_shared() -> None:
    assert "Lowest ECE: no adaptation and dec." in findings(results(BASELINE, method("dec")))[-1]
