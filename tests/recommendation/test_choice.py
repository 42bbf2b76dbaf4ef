"""The choice on scores made by hand: the default, clear gains, the most honest form, and the reason."""

import re
from typing import Any

import pytest
import torch

from equipoise.recommendation.choice import Form, chosen_form, interval, joint_level, reason, shift_sums
from tests.support.forms import SHIFTS, SOURCE, UNEVEN, form, moved


def everywhere(name: str, gain: float, nll: float = 1.0, **others: Any) -> Form:
    """A method that is so much more accurate on every shift."""
    return form(name, moved([gain] * SHIFTS), nll, **others)


def once(name: str, gain: float, nll: float = 0.1) -> Form:
    """A method that is more accurate on one shift, and a little less on all others."""
    return form(name, moved([gain] + [-0.01] * (SHIFTS - 1)), nll)


SURE, LUCKY, POISE = everywhere("norm", 0.02), once("tent", 0.6), everywhere("poise", 0.015)
UNSURE, LOSING = once("poise", 0.05, nll=0.5), once("poise", 0.0, nll=0.5)
USELESS = everywhere("t3a", 0.0)
HONEST = everywhere("norm", 0.1, nll=0.1, tempering="rehearsed")
PLAIN = everywhere("norm", 0.1, nll=0.5)
SAME = everywhere("norm", 0.1, nll=0.5, tempering="rehearsed")  # as at a temperature of 1
MISLED = everywhere("norm", 0.1, nll=0.9, tempering="rehearsed")
TEMPERED_SOURCE = form("source", UNEVEN, nll=0.5, tempering="rehearsed")
POISES = (
    everywhere("poise", 0.3, nll=0.9),
    everywhere("poise", 0.05, nll=0.5, tempering="rehearsed"),  # the source model may answer
)
RIVAL, ACCURATE = everywhere("norm", 0.1, nll=2.0), everywhere("tent", 0.12, nll=3.0)
SLOW, FAST = everywhere("sar", 0.11, nll=0.6, seconds=9), everywhere("norm", 0.1, nll=0.6, seconds=1)


@pytest.mark.parametrize(
    ("forms", "chosen"),
    [
        pytest.param([SURE], SURE, id="a small gain on every shift is clear although shifts differ much"),
        pytest.param([once("tent", 0.3)], SOURCE, id="a gain on one shift alone is no reason to adapt"),
        pytest.param([TEMPERED_SOURCE], TEMPERED_SOURCE, id="the more honest form of no adaptation"),
        pytest.param([*POISES, RIVAL], RIVAL, id="a method is compared in the form that is deployed"),
        pytest.param([POISES[0], RIVAL], POISES[0], id="and in its only form"),
        pytest.param([POISE], POISE, id="poise is the default"),
        pytest.param([POISE, LUCKY], POISE, id="unless another is clearly better"),
        pytest.param([POISE, SURE], SURE, id="as this one is"),
        pytest.param([LOSING], SOURCE, id="a default that clearly loses gives way to no adaptation"),
        pytest.param([LOSING, SURE], SURE, id="or to another method"),
        pytest.param([UNSURE], UNSURE, id="made-up shifts are mild: an unsure loss is no reason against it"),
        pytest.param([HONEST, ACCURATE], ACCURATE, id="likelihoods say nothing about methods"),
        pytest.param([PLAIN, MISLED], PLAIN, id="a rehearsal that makes answers less honest is left out"),
        pytest.param([PLAIN, SAME], SAME, id="one that changes nothing is kept for its estimate"),
        pytest.param([SAME, PLAIN], SAME, id="in whatever order they come"),
        pytest.param([SLOW, FAST], SLOW, id="time decides nothing"),
        pytest.param([LUCKY, SURE], SURE, id="a sure small gain wins over an unsure larger one"),
    ],
)
def test_the_choice(forms: list[Form], chosen: Form) -> None:
    assert chosen_form([SOURCE, *forms]) is chosen


def test_gains_of_the_methods_above_are_as_clear_as_they_say() -> None:
    assert SURE.gain(SOURCE).clear
    assert SOURCE.gain(LOSING).clear
    assert once("tent", 0.3).gain(SOURCE).value > 0
    assert SOURCE.gain(UNSURE).value > 0
    assert not SOURCE.gain(UNSURE).clear
    assert LUCKY.sums.accuracies[0] > SURE.sums.accuracies[0] > POISE.sums.accuracies[0]


def test_the_more_methods_are_tried_the_clearer_a_gain_must_be() -> None:
    uncertain = moved([0.1, 0.02, -0.02, 0.06, -0.03, 0.08, -0.03, 0.06, -0.02, 0.05])
    lucky = form("tent", uncertain, nll=1.0)
    useless = [form(f"useless {place}", UNEVEN, nll=1.0) for place in range(12)]
    assert chosen_form([SOURCE, lucky]) is lucky
    assert chosen_form([SOURCE, lucky, *useless]) is SOURCE
    assert joint_level(1) == 0.9
    assert joint_level(10) == 0.99


def test_sums_leave_out_samples_of_no_class() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [5.0, 0.0], [1.0, 0.0]])
    labels, domains = torch.tensor([0, 0, -1, 0]), torch.tensor([0, 0, 0, 1])
    sums = shift_sums(logits, labels, domains, 2)
    assert sums.counts.tolist() == [2, 1]
    assert sums.hits.tolist() == [1, 1]
    expected = [-logits.softmax(1)[place, 0].log() for place in (0, 1, 3)]
    torch.testing.assert_close(
        sums.losses, torch.stack([expected[0] + expected[1], expected[2]]).double(), atol=1e-6, rtol=0
    )


def test_an_interval_is_that_of_resampled_shifts() -> None:
    found = interval(form("norm", UNEVEN, nll=1.0).sums.accuracies)
    torch.manual_seed(5)
    means = torch.tensor(UNEVEN)[torch.randint(SHIFTS, (20_000, SHIFTS))].mean(1)
    assert abs(found.value - sum(UNEVEN) / SHIFTS) < 1e-9
    assert abs(found.low - float(means.quantile(0.05))) < 0.02
    assert abs(found.high - float(means.quantile(0.95))) < 0.02


# ---------------------------------------------------------------------- in words


def test_an_unclear_loss_of_the_default_is_no_negative_gain() -> None:
    gain = UNSURE.gain(SOURCE)
    assert gain.value < 0 < gain.high
    said = reason([SOURCE, UNSURE, USELESS], left_out=0)
    assert said == (
        "poise is the default, and the other method is not clearly more accurate; it loses 0.004 against no "
        f"adaptation here, but not clearly (a gain of {gain.low:.3f} to {gain.high:.3f})."
    )


def test_a_gain_of_the_default_has_its_interval() -> None:
    said = reason([SOURCE, POISE, USELESS], left_out=0)
    assert re.search(r"; over no adaptation it gains 0\.015 \(-?0\.\d{3} to -?0\.\d{3}\)\.$", said)


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
    said = reason([SOURCE, LOSING, SURE], 0)
    assert said.startswith("norm is clearly more accurate than no adaptation, by 0.020, at least 0.0")
    assert said.endswith(f"; {lost}.")


def test_methods_that_were_not_tried_are_not_called_worse() -> None:
    assert "poise is the default, and no other method was tried to the end; " in reason([SOURCE, POISE], 7)
    assert "poise is the default, and no other method was tried; " in reason([SOURCE, POISE], 0)
    assert reason([SOURCE], 3) == "No method was tried to the end: do not adapt."
    assert reason([SOURCE], 0) == "No method was tried: do not adapt."
    assert reason([SOURCE, USELESS], 0) == (
        "No method is clearly more accurate than the model as it is: do not adapt."
    )


def test_the_default_is_not_among_those_that_another_method_is_compared_with() -> None:
    """The lower ends are of gains over the default."""
    poise = everywhere("poise", 0.001)
    assert re.fullmatch(
        r"norm is clearly more accurate than poise, by 0\.\d+, at least 0\.\d+\.",
        reason([SOURCE, poise, SURE, USELESS], 0),
    )
