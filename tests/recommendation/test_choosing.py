"""The rule of choice on scores made by hand: the default, clear gains over it, the most honest form."""

import torch

from equipoise.recommendation.choice import chosen_form, interval, joint_level, shift_sums
from tests.support.forms import SHIFTS, SOURCE, UNEVEN, form, moved


def test_a_small_gain_on_every_shift_is_clear_although_shifts_differ_much() -> None:
    better = form("norm", moved([0.02] * SHIFTS), nll=1.0)
    assert better.gain(SOURCE).clear
    assert chosen_form([SOURCE, better]).candidate.name == "norm"


def test_a_gain_on_one_shift_alone_is_no_reason_to_adapt() -> None:
    lucky = form("tent", moved([0.3] + [-0.01] * (SHIFTS - 1)), nll=0.1)
    assert lucky.gain(SOURCE).value > 0
    assert chosen_form([SOURCE, lucky]) is SOURCE


def test_no_adaptation_takes_its_own_rehearsed_form_where_that_is_more_honest() -> None:
    tempered = form("source", UNEVEN, nll=0.5, tempering="rehearsed")
    assert chosen_form([SOURCE, tempered]) is tempered


def test_a_method_is_compared_in_the_form_that_is_deployed() -> None:
    """With a rehearsal the source model may answer, so that the accuracy is another one, too."""
    plain = form("poise", moved([0.3] * SHIFTS), nll=0.9)
    tempered = form("poise", moved([0.05] * SHIFTS), nll=0.5, tempering="rehearsed")
    rival = form("norm", moved([0.1] * SHIFTS), nll=2.0)
    assert chosen_form([SOURCE, plain, tempered, rival]) is rival
    assert chosen_form([SOURCE, plain, rival]) is plain


def test_poise_is_the_default_unless_another_is_clearly_better() -> None:
    poise = form("poise", moved([0.015] * SHIFTS), nll=1.0)
    lucky = form("tent", moved([0.6] + [-0.01] * (SHIFTS - 1)), nll=0.1)
    sure = form("norm", moved([0.02] * SHIFTS), nll=1.0)
    assert lucky.sums.accuracies[0] > poise.sums.accuracies[0]
    assert chosen_form([SOURCE, poise, lucky]) is poise
    assert chosen_form([SOURCE, poise, sure]) is sure
    assert chosen_form([SOURCE, poise]) is poise


def test_a_default_that_clearly_loses_accuracy_gives_way_to_no_adaptation() -> None:
    losing = form("poise", moved([0.0] + [-0.01] * (SHIFTS - 1)), nll=0.5)
    assert SOURCE.gain(losing).clear
    assert chosen_form([SOURCE, losing]) is SOURCE
    sure = form("norm", moved([0.02] * SHIFTS), nll=1.0)
    assert chosen_form([SOURCE, losing, sure]) is sure


def test_a_default_that_may_or_may_not_lose_stays() -> None:
    """Made-up shifts are milder than real ones: a loss within its interval is no reason not to adapt."""
    unsure = form("poise", moved([0.05] + [-0.01] * (SHIFTS - 1)), nll=0.5)
    assert SOURCE.gain(unsure).value > 0
    assert not SOURCE.gain(unsure).clear
    assert chosen_form([SOURCE, unsure]) is unsure


def test_a_tempered_form_is_no_reason_to_take_a_less_accurate_method() -> None:
    """Negative log-likelihoods of a tempered and an untempered method say nothing about the methods."""
    honest = form("norm", moved([0.1] * SHIFTS), nll=0.1, tempering="rehearsed")
    accurate = form("tent", moved([0.12] * SHIFTS), nll=3.0)
    assert chosen_form([SOURCE, honest, accurate]) is accurate


def test_a_rehearsal_that_makes_answers_less_honest_is_left_out() -> None:
    plain = form("norm", moved([0.1] * SHIFTS), nll=0.5)
    tempered = form("norm", moved([0.1] * SHIFTS), nll=0.9, tempering="rehearsed")
    assert chosen_form([SOURCE, plain, tempered]) is plain


def test_a_rehearsal_that_changes_nothing_is_kept_for_its_estimate_of_accuracy() -> None:
    """At a temperature of 1 the answers, and so their likelihood, are the same with and without it."""
    plain = form("norm", moved([0.1] * SHIFTS), nll=0.5)
    tempered = form("norm", moved([0.1] * SHIFTS), nll=0.5, tempering="rehearsed")
    assert chosen_form([SOURCE, plain, tempered]) is tempered
    assert chosen_form([SOURCE, tempered, plain]) is tempered


def test_time_decides_nothing() -> None:
    slow = form("sar", moved([0.11] * SHIFTS), nll=0.6, seconds=9)
    fast = form("norm", moved([0.1] * SHIFTS), nll=0.6, seconds=1)
    assert chosen_form([SOURCE, slow, fast]) is slow


def test_a_sure_small_gain_wins_over_an_unsure_larger_one() -> None:
    sure = form("norm", moved([0.02] * SHIFTS), nll=1.0)
    unsure = form("tent", moved([0.6] + [-0.01] * (SHIFTS - 1)), nll=0.1)
    assert unsure.sums.accuracies[0] > sure.sums.accuracies[0]
    assert chosen_form([SOURCE, unsure, sure]) is sure


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
