"""The choice in words, on scores made by hand."""

import re

from equipoise.recommendation.choice import reason
from tests.support.forms import SHIFTS, SOURCE, form, moved

UNSURE = form("poise", moved([0.05] + [-0.01] * (SHIFTS - 1)), nll=0.5)
LOSING = form("poise", moved([0.0] + [-0.01] * (SHIFTS - 1)), nll=0.5)
USELESS = form("t3a", moved([0.0] * SHIFTS), nll=1.0)
BETTER = form("norm", moved([0.02] * SHIFTS), nll=1.0)
NUMBERS = r"\(-?0\.\d{3} to -?0\.\d{3}\)"


def test_an_unclear_loss_of_the_default_is_no_negative_gain() -> None:
    gain = UNSURE.gain(SOURCE)
    assert gain.value < 0 < gain.high
    said = reason([SOURCE, UNSURE, USELESS], left_out=0)
    assert said == (
        "poise is the default, and the other method is not clearly more accurate; it loses 0.004 against no "
        f"adaptation here, but not clearly (a gain of {gain.low:.3f} to {gain.high:.3f})."
    )


def test_a_gain_of_the_default_has_its_interval() -> None:
    poise = form("poise", moved([0.015] * SHIFTS), nll=1.0)
    said = reason([SOURCE, poise, USELESS], left_out=0)
    assert re.search(rf"; over no adaptation it gains 0\.015 {NUMBERS}\.$", said)


def test_a_clear_loss_of_the_default_is_the_reason_not_to_adapt() -> None:
    loss = SOURCE.gain(LOSING)
    lost = (
        f"poise is clearly less accurate than no adaptation, by {loss.value:.3f} "
        f"({loss.low:.3f} to {loss.high:.3f})"
    )
    assert loss.clear
    assert reason([SOURCE, LOSING], 0) == f"{lost}, and no other method was tried: do not adapt."
    assert reason([SOURCE, LOSING, USELESS], 0) == (
        f"{lost}, and the other method is not clearly more accurate: do not adapt."
    )
    said = reason([SOURCE, LOSING, BETTER], 0)
    assert said.startswith("norm is clearly more accurate than no adaptation, by 0.020, at least 0.0")
    assert said.endswith(f"; {lost}.")


def test_methods_that_were_not_tried_are_not_called_worse() -> None:
    poise = form("poise", moved([0.015] * SHIFTS), nll=1.0)
    assert "poise is the default, and no other method was tried to the end; " in reason([SOURCE, poise], 7)
    assert "poise is the default, and no other method was tried; " in reason([SOURCE, poise], 0)
    assert reason([SOURCE], 3) == "No method was tried to the end: do not adapt."
    assert reason([SOURCE], 0) == "No method was tried: do not adapt."
    assert reason([SOURCE, USELESS], 0) == (
        "No method is clearly more accurate than the model as it is: do not adapt."
    )


def test_the_default_is_not_among_those_that_another_method_is_compared_with() -> None:
    """The lower ends are of gains over the default."""
    poise = form("poise", moved([0.001] * SHIFTS), nll=1.0)
    assert re.fullmatch(
        r"norm is clearly more accurate than poise, by 0\.\d+, at least 0\.\d+\.",
        reason([SOURCE, poise, BETTER, USELESS], 0),
    )
