"""The temperature that a rehearsal gives, with regressions made by hand."""

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.calibration import window
from equipoise.calibration.rehearsed import RehearsedTemperature
from tests.support.rehearsals import CLASSES, GRID, rehearsal, ridge, window_of

FLAT = [0.0, 0.0, 0.0, 0.0]
ALL = torch.ones(50, dtype=torch.bool)


def drawn(rows: int = 50, seed: int = 2, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(seed))


def temperature_at(curve: Tensor, aim: float) -> float:
    """Where mean confidence at the temperatures of the grid crosses an aim, by a walk along them."""
    if curve[0] <= aim:
        return 1.0
    for low in range(len(GRID) - 1):
        left, right = float(curve[low]), float(curve[low + 1])
        if left > aim >= right:
            return float(GRID[low] * (GRID[1] ** ((left - aim) / (left - right))))
    return 32.0


def aimed(confidence: float, value: float, doubt: float) -> float:
    """The confidence to have, with the logit of the estimated accuracy and the doubt of it."""
    c = math.log(confidence / (1 - confidence))
    apart = value - c
    moved = c + apart * apart**2 / (apart**2 + (doubt / 2) ** 2)
    return 1 / (1 + math.exp(-moved))


@pytest.mark.parametrize("doubt", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_confidence_is_matched_to_accuracy_as_far_as_it_is_known(value: float, doubt: float) -> None:
    made = RehearsedTemperature(rehearsal(ridge(FLAT, value, doubt=doubt)), compares=False)
    observed, verdict = made.after(made.initial(), drawn(), None, ALL)
    prior = made.rehearsal.prior[0] * 50
    slow = prior * 2 ** (-50 / 300) + window_of(drawn())
    torch.testing.assert_close(observed["windows"][0, 0].double(), slow, rtol=1e-4, atol=1e-4)
    confidence = float(slow[1] / slow[0])
    expected = temperature_at(slow[4:25] / slow[0], aimed(confidence, value, doubt))
    assert verdict.temperatures.tolist() == pytest.approx([expected], rel=1e-3)
    assert not bool(verdict.trusts)


def test_a_doubt_that_is_large_leaves_answers_as_they_are() -> None:
    found = []
    for doubt in (0.0, 1.0, 3.0, 100.0):
        made = RehearsedTemperature(rehearsal(ridge(FLAT, -0.5, doubt=doubt)), compares=False)
        found.append(float(made.after(made.initial(), drawn(), None, ALL)[1].temperatures[0]))
    assert found == sorted(found, reverse=True)
    assert found[0] > 2
    assert found[-1] == pytest.approx(1, abs=0.01)


def test_it_never_sharpens_and_is_never_hotter_than_was_right() -> None:
    sure = RehearsedTemperature(rehearsal(ridge(FLAT, 6.0)), compares=False)
    assert sure.after(sure.initial(), drawn(scale=0.5), None, ALL)[1].temperatures.tolist() == [1.0]
    hottest = torch.tensor([1.75], dtype=torch.float64)
    cold = RehearsedTemperature(rehearsal(ridge(FLAT, -6.0), hottest=hottest), compares=False)
    observed, verdict = cold.after(cold.initial(), drawn(), None, ALL)
    assert verdict.temperatures.tolist() == [1.75]
    assert float(cold.level(observed)) == 1.75


def gap_of(ahead: float, student: float) -> float:
    """What to add to the logit of an accuracy to be so much ahead."""
    a = 1 / (1 + math.exp(-student)) + ahead
    return math.log(a / (1 - a)) - student


def judging(ahead: float) -> RehearsedTemperature:
    """One for which the source model is always estimated to be so much more accurate."""
    made = rehearsal(ridge(FLAT, 0.4), ridge([0.0] * 8, gap_of(ahead, 0.4)))
    return RehearsedTemperature(made, compares=True)


def test_the_source_model_is_trusted_late_and_left_later() -> None:
    slow = torch.stack([window_of(drawn(seed=seed)) for seed in (3, 4)]).float()
    for ahead, enters, stays in ((0.06, True, True), (0.04, False, True), (0.03, False, True)):
        assert bool(judging(ahead).judge(slow, torch.tensor(False)).trusts) is enters
        assert bool(judging(ahead).judge(slow, torch.tensor(True)).trusts) is stays
    for ahead in (0.01, 0.0, -0.2):
        for before in (True, False):
            assert not bool(judging(ahead).judge(slow, torch.tensor(before)).trusts)


def test_who_is_trusted_depends_on_the_stream() -> None:
    # The more confident the source model is than the student, the more it is ahead.
    student, gap = ridge(FLAT, 0.0), ridge([-1.0, 0, 0, 0, 1.0, 0, 0, 0], 0.0)
    made = RehearsedTemperature(rehearsal(student, gap), compares=True)
    flags, observed = [], made.initial()
    for mine, other in ((1.0, 1.0), (1.0, 6.0), (1.0, 6.0), (6.0, 1.0), (6.0, 1.0), (6.0, 1.0)):
        observed, verdict = made.after(observed, drawn(scale=mine), drawn(seed=9, scale=other), ALL)
        flags.append(bool(verdict.trusts))
        assert bool(observed["trusts_source"]) is flags[-1]
        x = [window.features(observed["windows"][model, 0].double()).tolist() for model in (0, 1)]
        ahead = 1 / (1 + math.exp(x[0][0] - x[1][0])) - 0.5
        limit = 0.02 if len(flags) > 1 and flags[-2] else 0.05
        assert flags[-1] is (ahead > limit)
        expected = verdict.temperatures[1 if flags[-1] else 0]
        assert float(made.level(observed)) == pytest.approx(float(expected))
    assert True in flags
    assert flags[-1] is False


def test_before_the_first_batch_there_are_50_samples_without_a_shift() -> None:
    made = RehearsedTemperature(rehearsal(ridge(FLAT, 0.0), ridge([0.0] * 8, 0.3)), compares=True)
    prior, observed = made.rehearsal.prior.float() * 50, made.initial()
    assert observed["windows"].shape == (2, 2, 4 + 21 + CLASSES)
    for speed in range(2):
        torch.testing.assert_close(observed["windows"][:, speed], prior)
    assert float(observed["windows"][0, 0, 0]) == pytest.approx(50)
    assert not bool(observed["trusts_source"])
    own, theirs = made.estimates(observed)
    assert own.value == pytest.approx(0.5)
    assert theirs is not None
    assert theirs.value == pytest.approx(1 / (1 + math.exp(-0.3)))
    alone = RehearsedTemperature(made.rehearsal, compares=False)
    assert alone.initial()["windows"].shape[0] == 1
    assert alone.estimates(alone.initial())[1] is None


def test_a_rehearsal_without_a_source_model_cannot_compare() -> None:
    made = RehearsedTemperature(rehearsal(ridge(FLAT)), compares=True)
    assert not made.compares
    observed, verdict = made.after(made.initial(), drawn(), drawn(seed=5), ALL)
    assert observed["windows"].shape[0] == 1
    assert not bool(verdict.trusts)


def copied(observed: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in observed.items()}


def alike(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def two_models() -> eq.Rehearsal:
    return rehearsal(ridge([0.5, 0, 0, 0]), ridge([0.0] * 8, 1.0))


def test_nothing_is_written_in_place() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    prior, fresh = made.rehearsal.prior.clone(), made.initial()
    before = copied(fresh)
    logits, source, good = drawn(), drawn(seed=5), ALL.clone()
    copies = logits.clone(), source.clone(), good.clone()
    observed, _ = made.after(fresh, logits, source, good)
    assert bool(observed["trusts_source"])
    assert alike(fresh, before)
    assert not alike(observed, before)
    after = copied(observed)
    made.level(observed)
    made.estimates(observed)
    made.after(observed, logits, source, good)
    assert alike(observed, after)
    assert all(torch.equal(*pair) for pair in zip((logits, source, good), copies, strict=True))
    fresh["windows"].zero_()
    assert torch.equal(made.rehearsal.prior, prior)
    assert alike(made.initial(), before)


def test_samples_that_are_not_good_do_not_count() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    logits, source, good = drawn(), drawn(seed=5), ALL.clone()
    good[[0, 7]] = False
    clean, _ = made.after(made.initial(), logits[good], source[good], good[good])
    logits[0], source[7] = math.nan, math.inf
    found, verdict = made.after(made.initial(), logits, source, good)
    torch.testing.assert_close(found["windows"], clean["windows"])
    assert bool(verdict.temperatures.isfinite().all())
    none, verdict = made.after(made.initial(), logits, source, ~ALL)
    assert alike(none, {**made.initial(), "trusts_source": verdict.trusts})
