"""Temperatures of streams: of tau, of agreement, and of rehearsals, with regressions made by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.calibration import window
from equipoise.calibration.expected import Taught
from equipoise.calibration.labels import label_sums
from equipoise.calibration.regression import Process
from equipoise.calibration.temper import (
    RehearsedTemperature,
    TauTemperature,
    Temper,
    Tempering,
    TrustedModel,
    agreement_temperature,
)
from equipoise.errors import OptionError
from tests.support.models import drifted, make, rehearsed
from tests.support.rehearsals import (
    CLASSES,
    FEATURES,
    check_alike,
    flat,
    flat_gap,
    flat_lead,
    line,
    rehearsal,
    ridge,
    temperature_at,
    window_of,
    windows_of,
)

taus = st.lists(st.floats(2**-10, 2**13, width=32), min_size=1, max_size=200)


def judged(made: RehearsedTemperature, *batch: Any) -> tuple[dict[str, Tensor], TrustedModel]:
    """The observations after a batch, and the temperatures by them."""
    answers = made.answer(*batch)
    assert answers.judged is not None
    return dict(answers.observed), answers.judged


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_running_temperatures_are_exact_or_within_one_percent_however_the_stream_is_cut(
    kind: Tempering,
) -> None:
    @settings(deadline=None, derandomize=True)
    @given(taus, st.integers(1, 50))
    def check(values: list[float], size: int) -> None:
        temperature = TauTemperature(kind)
        observed = temperature.initial()
        for part in torch.tensor(values).split(size):
            observed = temperature.after(observed, part, torch.ones(()))
        lower_middle = sorted(values)[(len(values) - 1) // 2]
        expected, rel = (math.fsum(values) / len(values), 1e-9) if kind == "mean" else (lower_middle, 0.01)
        assert float(temperature.level(observed)) == pytest.approx(expected, rel=rel)

    check()


def test_the_median_sketch_has_a_fixed_size_and_bounded_ends() -> None:
    temperature = TauTemperature("median")
    observed = temperature.initial()
    size = observed["sketch"].numel()
    for seed in range(20):
        tau = torch.rand(1000, generator=torch.Generator().manual_seed(seed)) * 5
        observed = temperature.after(observed, tau, torch.ones(()))
    observed = temperature.after(observed, torch.tensor([1e-30, 1e30]), torch.ones(()))
    assert observed["sketch"].numel() == size
    assert int(observed["count"]) == 20_002
    assert 2.4 < float(temperature.level(observed)) < 2.6


@pytest.mark.parametrize("kind", ["mean", "median", "sample", "agreement", "none"])
def test_observations_are_not_written_in_place(kind: Tempering) -> None:
    temperature = TauTemperature(kind)
    fresh, again = temperature.initial(), temperature.initial()
    observed = temperature.after(fresh, torch.tensor([2.0, 3.0]), torch.tensor(2.5))
    assert int(observed["count"]) == 2
    assert all(torch.equal(fresh[name], tensor) for name, tensor in again.items())
    assert float(temperature.level(fresh)) == 1.0


@pytest.mark.parametrize("kind", ["mean", "median", "sample", "agreement", "none"])
def test_the_temperature_before_the_first_batch_is_one(kind: str) -> None:
    model, source = make()
    adapter = eq.create("poise", model, source, tempering=kind)
    x = drifted(6)
    if kind != "sample":
        with torch.no_grad():
            assert torch.allclose(adapter.predict(x), model(x))


@pytest.mark.parametrize("kind", ["mean", "median", "agreement", "none"])
def test_a_scalar_temperature_leaves_the_classes_alone(kind: str) -> None:
    model, source = make()
    plain = eq.create("poise", model, source, tempering="none")
    tempered = eq.create("poise", model, source, tempering=kind)
    for seed in range(3):
        x = drifted(8, seed)
        assert torch.equal(plain(x).argmax(1), tempered(x).argmax(1))
    assert torch.equal(plain.predict(x).argmax(1), tempered.predict(x).argmax(1))


def test_unknown_tempering() -> None:
    model, source = make()
    with pytest.raises(
        eq.errors.OptionError,
        match="expected tempering as one of mean, median, sample, agreement, rehearsed, none",
    ):
        eq.create("poise", model, source, tempering="mode")


def test_agreement_is_where_confidence_meets_what_two_models_find() -> None:
    draw = torch.Generator().manual_seed(0)
    z, other = 6 * torch.randn(40, 5, generator=draw), 3 * torch.randn(40, 5, generator=draw)
    t, tau = 2 + torch.rand(40, generator=draw), 1 + 4 * torch.rand(40, generator=draw)
    found = agreement_temperature(z, other, t, tau)
    start = sorted((t * tau).sqrt().tolist())[19]  # the lower middle of 40
    classes = z.argmax(1)
    ours, theirs = (z / start).softmax(1), (other / start).softmax(1)
    rows = range(40)
    aim = sum(float(ours[i, classes[i]] + theirs[i, classes[i]]) / 2 for i in rows) / 40
    reached = sum(float((z[i] / found).softmax(0).max()) for i in rows) / 40
    assert reached == pytest.approx(aim, abs=1e-3)
    assert found > start  # the two differ, so the answers are to be less certain


def test_models_that_agree_are_divided_by_the_start() -> None:
    z = 4 * torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    t, tau = torch.full((30,), 2.0), torch.full((30,), 4.5)
    assert float(agreement_temperature(z, z, t, tau)) == pytest.approx(3.0, rel=1e-3)


def test_the_running_agreement_is_a_geometric_mean_by_samples() -> None:
    temperature = TauTemperature("agreement")
    observed = temperature.after(temperature.initial(), torch.ones(10), torch.tensor(2.0))
    observed = temperature.after(observed, torch.ones(30), torch.tensor(8.0))
    assert float(temperature.level(observed)) == pytest.approx((2**10 * 8**30) ** (1 / 40))


def test_answers_that_are_not_finite_do_not_count_for_the_agreement() -> None:
    _, source = make()
    temper = Temper("agreement", source, 1.0, 3.0)
    z = torch.randn(6, source.num_classes, generator=torch.Generator().manual_seed(2))
    view, every = temper.view(z), torch.ones(7, dtype=torch.bool)
    spoilt = torch.cat([z, torch.full_like(z[:1], torch.nan)])
    wider = view.select(torch.tensor([0, 1, 2, 3, 4, 5, 0]))
    spoilt_by = temper.divide(temper.initial(), spoilt, wider, every).temperature
    clean = temper.divide(temper.initial(), z, view, every[:6]).temperature
    assert spoilt_by is not None and clean is not None
    assert float(spoilt_by) == pytest.approx(float(clean))


def test_models_that_are_certain_and_agree_are_not_made_more_certain() -> None:
    for gap in (30.0, 40.0, 100.0, 400.0):  # in single precision the probabilities round to 1
        z = torch.zeros(3, 5)
        z[:, 2] = gap
        found = agreement_temperature(z, z, torch.full((3,), 2.0), torch.full((3,), 2.0))
        assert float(found) == pytest.approx(2.0, rel=1e-3)


# ---------------------------------------------------------------------- the range


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None), (1.0, 3.0)),
        ((1.5, None), (1.5, 3.0)),
        ((None, 2.0), (1.0, 2.0)),
        ((1.0, 3.0), (1.0, 3.0)),
    ],
)
def test_the_range_of_tau_is_1_to_3_where_none_is_given(
    given: tuple[float | None, float | None], expected: tuple[float, float]
) -> None:
    _, source = make()
    temper = Temper("mean", source, *given)
    assert temper.given == given
    assert (temper.t_min, temper.t_max) == expected
    t = temper.view(3 * torch.randn(50, source.num_classes)).t
    assert expected[0] <= float(t.min()) <= float(t.max()) <= expected[1]


@pytest.mark.parametrize(
    ("t_min", "t_max"),
    [(0.3, None), (None, 0.3), (0.25, 32.0), (2.0, 2.0), (1.0, None), (5.0, None), (None, 30.0)],
)
def test_a_range_of_rehearsed_temperatures_may_be_on_both_sides_of_1(
    t_min: float | None, t_max: float | None
) -> None:
    _, source = make()
    temper = Temper("rehearsed", source, t_min, t_max, rehearsal(flat(0.0)))
    assert temper.given == (t_min, t_max)
    logits = torch.randn(20, source.num_classes, generator=torch.Generator().manual_seed(0))
    assert torch.equal(temper.view(logits).logits, logits)  # also where poise asks the source model


@pytest.mark.parametrize(
    ("t_min", "t_max"), [(0.2, None), (None, 33.0), (2.0, 1.5), (None, 0.2), (40.0, None), (-1.0, 2.0)]
)
def test_a_range_that_is_not_searched_is_refused(t_min: float | None, t_max: float | None) -> None:
    model, source = make()
    with pytest.raises(OptionError, match=r"expected 0\.25 <= t_min <= t_max <= 32 .*, got t_min="):
        Temper("rehearsed", source, t_min, t_max, rehearsal(flat(0.0)))
    with pytest.raises(OptionError, match=r"expected 0\.25 <= t_min <= t_max <= 32 .*, got t_min="):
        eq.Poise(model, rehearsed(source, "poise"), t_min=t_min, t_max=t_max)


@pytest.mark.parametrize("value", ["1", True, math.nan, math.inf])
def test_a_range_that_is_no_number_is_refused(value: float) -> None:
    _, source = make()
    with pytest.raises(OptionError, match="t_max"):
        Temper("rehearsed", source, None, value, rehearsal(flat(0.0)))
    with pytest.raises(OptionError, match="t_max"):
        Temper("mean", source, None, value)


def test_a_range_that_is_given_is_that_of_the_rehearsed_temperatures() -> None:
    _, source = make()
    own = rehearsal(flat(6.0), coolest=torch.tensor([0.8]).double())
    logits = torch.randn(50, source.num_classes, generator=torch.Generator().manual_seed(0))
    own = replace(own, prior=torch.ones(1, 7 + 29 + source.num_classes).double())
    found = []
    for t_min in (None, 0.3, 1.0):
        temper = Temper("rehearsed", source, t_min, None, own)
        after = temper.divide(temper.initial(), logits, None, torch.ones(50, dtype=torch.bool))
        assert after.temperature is not None
        found.append(float(after.temperature))
        torch.testing.assert_close(after.logits * after.temperature, logits)
        assert float(temper.level(after.observed)) == pytest.approx(found[-1])
    assert found == pytest.approx([0.8, 0.3, 1.0])


@pytest.mark.parametrize("given", [{"t_min": 1.0}, {"t_max": 3.0}, {"t_min": 0.5, "t_max": 2.0}])
def test_a_range_without_effect_is_refused(given: dict[str, float]) -> None:
    model, source = make()
    for method in ("tent", "poise", "source"):
        with pytest.raises(
            OptionError, match=rf"t_min and t_max have no effect on {method} .*leave them out"
        ):
            eq.create(method, model, source, tempering="none", **given)
    assert eq.create("tent", model, source, tempering="mean", t_min=1.2).temper.t_min == 1.2
    dec = eq.create("dec", model, source, tempering="none", t_max=2.0)  # which learns with it
    assert dec.temper.t_max == 2.0


def test_options_have_the_range_that_was_given() -> None:
    model, source = make()
    own, others = (
        eq.create("tent", model, source, tempering="mean", **given).options for given in ({}, {"t_min": 1.5})
    )
    assert (own["t_min"], own["t_max"]) == (None, None)
    assert (others["t_min"], others["t_max"]) == (1.5, None)


ALL = torch.ones(50, dtype=torch.bool)


def drawn(rows: int = 50, seed: int = 2, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(seed))


def aimed(confidence: float, value: float, doubt: float) -> float:
    """The confidence to have, with the logit of the estimated accuracy and the doubt of it."""
    c = math.log(confidence / (1 - confidence))
    apart = value - c
    moved = c + apart * apart**2 / (apart**2 + (doubt / 2) ** 2)
    return 1 / (1 + math.exp(-moved))


@pytest.mark.parametrize("doubt", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 3.0, 5.0])
def test_confidence_is_matched_to_accuracy_as_far_as_it_is_known(value: float, doubt: float) -> None:
    made = RehearsedTemperature(rehearsal(flat(value, doubt=doubt)), compares=False)
    observed, verdict = judged(made, made.initial(), drawn(), None, ALL)
    prior = made.rehearsal.prior[0] * 50
    slow = prior * 2 ** (-50 / 300) + window_of(drawn())
    torch.testing.assert_close(observed["windows"][0, 0].double(), slow, rtol=1e-4, atol=1e-4)
    confidence = float(slow[1] / slow[0])
    expected = temperature_at(slow, aimed(confidence, value, doubt))
    assert verdict.temperatures.tolist() == pytest.approx([expected], rel=1e-3)
    assert not bool(verdict.trusts)


@pytest.mark.parametrize(("value", "sign"), [(-0.5, -1), (4.0, 1)])
def test_a_doubt_that_is_large_leaves_answers_as_they_are(value: float, sign: int) -> None:
    found = []
    for doubt in (0.0, 1.0, 3.0, 100.0):
        made = RehearsedTemperature(rehearsal(flat(value, doubt=doubt)), compares=False)
        found.append(float(judged(made, made.initial(), drawn(), None, ALL)[1].temperatures[0]))
    assert found == sorted(found, key=lambda t: sign * t)
    assert sign * math.log(found[0]) < -0.3
    assert found[-1] == pytest.approx(1, abs=0.02)


def searched(logits: Tensor, aim: float) -> float:
    """The temperature at which answers are as confident as that, by halving."""
    low, high = 0.25, 32.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        sure = float((logits / middle).softmax(1).amax(1).mean())
        low, high = (middle, high) if sure > aim else (low, middle)
    return low


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 3.5])
def test_the_temperature_is_found_on_both_sides_of_1(value: float) -> None:
    """Under-confident answers are divided by less than 1, over-confident ones by more."""
    logits = drawn(rows=2000, scale=1.5)
    made = RehearsedTemperature(rehearsal(flat(value)), compares=False)
    every = torch.ones(2000, dtype=torch.bool)
    _, verdict = judged(made, made.initial(), logits, None, every)
    expected = searched(logits.double(), 1 / (1 + math.exp(-value)))
    assert float(verdict.temperatures[0]) == pytest.approx(expected, rel=0.03)
    assert (expected < 1) is (value > 0.8)


def test_the_range_is_what_was_right_in_rehearsal() -> None:
    ends: dict[str, Any] = {"coolest": torch.tensor([0.6]).double(), "hottest": torch.tensor([1.75]).double()}
    for value, expected in ((6.0, 0.6), (-6.0, 1.75)):
        made = RehearsedTemperature(rehearsal(flat(value), **ends), compares=False)
        observed, verdict = judged(made, made.initial(), drawn(), None, ALL)
        assert verdict.temperatures.tolist() == pytest.approx([expected])
        assert float(made.level(observed)) == pytest.approx(expected)


def test_each_model_has_its_range() -> None:
    ends: dict[str, Any] = {
        "coolest": torch.tensor([0.6, 0.8]).double(),
        "hottest": torch.tensor([1.75, 3.0]).double(),
    }
    for value, expected in ((6.0, [0.6, 0.8]), (-6.0, [1.75, 3.0])):
        both = rehearsal(flat(value), flat(value), **ends)
        made = RehearsedTemperature(both, compares=True)
        _, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL)
        assert verdict.temperatures.tolist() == pytest.approx(expected)
        alone = RehearsedTemperature(both, compares=False)
        assert judged(alone, alone.initial(), drawn(), None, ALL)[1].temperatures.tolist() == pytest.approx(
            expected[:1]
        )


@pytest.mark.parametrize(
    ("t_min", "t_max", "coolest", "hottest"),
    [
        (None, None, 0.6, 1.75),
        (0.3, None, 0.3, 1.75),
        (1.0, None, 1.0, 1.75),
        (2.0, None, 2.0, 2.0),  # beyond the hottest that was right: the end that is given holds
        (None, 5.0, 0.6, 5.0),
        (None, 1.0, 0.6, 1.0),
        (None, 0.5, 0.5, 0.5),
        (0.7, 0.9, 0.7, 0.9),
        (0.25, 32.0, 0.25, 32.0),
    ],
)
def test_a_range_that_is_given_holds(
    t_min: float | None, t_max: float | None, coolest: float, hottest: float
) -> None:
    ends: dict[str, Any] = {"coolest": torch.tensor([0.6]).double(), "hottest": torch.tensor([1.75]).double()}
    for value, expected in ((6.0, coolest), (-6.0, hottest)):
        own = rehearsal(flat(value, low=-60.0, high=60.0), **ends)
        made = RehearsedTemperature(own, compares=False, t_min=t_min, t_max=t_max)
        logits = drawn(rows=5000, scale=0.3 if value > 0 else 300.0)
        _, verdict = judged(made, made.initial(), logits, None, torch.ones(5000, dtype=torch.bool))
        assert verdict.temperatures.tolist() == pytest.approx([expected])


def test_a_range_that_is_given_is_that_of_both_models() -> None:
    made = RehearsedTemperature(rehearsal(flat(6.0), flat(6.0)), compares=True, t_min=0.9, t_max=1.1)
    _, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL)
    assert verdict.temperatures.tolist() == pytest.approx([0.9, 0.9])


# ---------------------------------------------------------------------- who answers


def twice(slow: Tensor) -> Tensor:
    """Slow and fast windows that are the same, (models, 2, width)."""
    return torch.stack([slow, slow], 1)


def two_windows(disagreement: float = 0.2) -> Tensor:
    """Windows of two models, slow and fast alike, that differ about so many samples."""
    slow = windows_of(torch.stack([drawn(seed=3), drawn(seed=4)])).float()
    slow[:, window.APART] = disagreement * slow[:, window.COUNT]
    return twice(slow)


def share(value: float) -> float:
    """The accuracy of a logit."""
    return 1 / (1 + math.exp(-value))


def lead_of(mine: float, theirs: float, lead: float, gap: float) -> float:
    """The mean of the estimated leads: of the logits of both accuracies, a lead, and a gap of logits.

    The gap is added to the student's logit, and taken from the source model's: half of the one, half of the
    other.
    """
    linear = (share(mine + gap) - share(mine)) / 2 + (share(theirs) - share(theirs - gap)) / 2
    return (share(theirs) - share(mine) + lead + linear) / 3


def answering(
    mine: float, theirs: float, lead: float, gap: float, trusted: bool, disagreement: float = 0.1
) -> bool:
    """Whether the source model answers; in rehearsal at most .3 of the answers differed without loss."""
    own = rehearsal(flat(mine), flat(theirs), lead=flat_lead(lead), gap=flat_gap(gap), disagreement=0.3)
    windows, before = two_windows(disagreement), torch.tensor(trusted)
    alone = RehearsedTemperature(own, compares=False)
    assert not bool(alone.judge(windows[:1], before).trusts)
    return bool(RehearsedTemperature(own, compares=True).judge(windows, before).trusts)


@pytest.mark.parametrize(
    ("mine", "theirs", "lead", "gap", "enters", "stays"),
    [
        (0.4, 0.4, 0.16, 0.0, True, True),  # ahead by a third of .16
        (0.4, 0.4, 0.14, 0.0, False, True),  # not by enough to begin, but to go on
        (0.4, 0.4, 0.07, 0.0, False, True),
        (0.4, 0.4, 0.05, 0.0, False, False),
        (0.4, 0.4, 0.0, 0.0, False, False),
        (0.0, 0.64, 0.0, 0.0, True, True),  # .655 less .5, by their own estimates alone
        (0.0, 0.56, 0.0, 0.0, False, True),
        (0.4, 0.4, 0.0, 0.7, True, True),  # .162, by the linear regression alone
        (0.4, 0.4, 0.0, 0.6, False, True),
        (0.0, 0.3, 0.05, 0.05, False, True),  # .074, .05 and .012
        (0.0, 0.3, 0.05, 0.3, True, True),  # .074, .05 and .073
        (0.4, 0.4, 0.5, -0.5, True, True),  # none of them decides alone
        (0.4, 0.4, 0.2, -0.5, False, True),
        (0.4, 0.4, 0.15, -0.5, False, False),
        (0.4, 0.4, -0.2, 1.5, False, True),
        (1.0, 0.0, 0.25, 0.5, False, True),
        (-3.0, 3.0, -0.5, -1.0, True, True),
        (3.0, -3.0, 0.8, 1.0, False, False),
        (4.0, 4.0, 0.1, 2.0, True, True),  # a gap of logits is little accuracy where both are nearly right
        (4.0, 4.0, 0.08, 2.0, False, True),
        (3.0, -1.0, 0.5, 3.0, False, False),
        (-0.4, -0.4, -0.16, 0.0, False, False),
    ],
)
def test_who_answers(mine: float, theirs: float, lead: float, gap: float, enters: bool, stays: bool) -> None:
    ahead = lead_of(mine, theirs, lead, gap)
    assert (ahead > 0.05, ahead > 0.02) == (enters, stays)
    assert answering(mine, theirs, lead, gap, trusted=False) is enters
    assert answering(mine, theirs, lead, gap, trusted=True) is stays


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("mine", "theirs", "gap"),
    [
        (0.4, 0.4, 0.0),
        (-1.0, 2.0, 0.5),
        (2.0, -1.0, 0.5),
        (0.3, 0.8, -1.5),
        (-2.0, -2.5, 1.0),
        (3.0, 3.0, 4.0),
    ],
)
def test_the_lead_that_is_needed_is_what_the_other_estimates_leave(
    mine: float, theirs: float, gap: float, trusted: bool
) -> None:
    needed = 3 * (0.02 if trusted else 0.05) - 3 * lead_of(mine, theirs, 0.0, gap)
    assert answering(mine, theirs, needed + 0.002, gap, trusted)
    assert not answering(mine, theirs, needed - 0.002, gap, trusted)


@pytest.mark.parametrize("trusted", [False, True])
def test_models_that_differ_more_than_ever_without_loss_need_no_lead(trusted: bool) -> None:
    worse = (3.0, -3.0, -1.0, -3.0)
    assert not answering(*worse, trusted, disagreement=0.29)
    assert not answering(*worse, trusted, disagreement=0.31)  # .05 more is tolerated
    assert not answering(*worse, trusted, disagreement=0.34)
    assert answering(*worse, trusted, disagreement=0.36)
    assert answering(*worse, trusted, disagreement=1.0)
    better = (0.4, 0.4, 0.16, 0.0)
    for disagreement in (0.0, 0.34, 0.36):
        assert answering(*better, trusted, disagreement)


def test_who_is_trusted_depends_on_the_stream() -> None:
    # The more confident the source model is than the student, the more it is ahead: by .08 for each logit.
    slopes = [0.0] * (2 * FEATURES)
    slopes[0], slopes[FEATURES] = -0.4, 0.4
    own = rehearsal(flat(0.0), flat(0.3), lead=line(slopes), gap=ridge([10 * w for w in slopes]))
    made = RehearsedTemperature(own, compares=True)
    flags: list[bool] = []
    observed = made.initial()
    for mine, other in ((1.0, 1.0), (1.0, 9.0), (1.0, 9.0), (1.0, 9.0), (6.0, 1.0), (6.0, 1.0), (6.0, 1.0)):
        observed, verdict = judged(made, observed, drawn(scale=mine), drawn(seed=9, scale=other), ALL)
        before = flags[-1] if flags else False
        flags.append(bool(verdict.trusts))
        assert bool(observed["trusts_source"]) is flags[-1]
        c = [float(observed["windows"][model, 0, 1] / observed["windows"][model, 0, 0]) for model in (0, 1)]
        apart = math.log(c[1] / (1 - c[1])) - math.log(c[0] / (1 - c[0]))
        ahead = lead_of(0.0, 0.3, 0.08 * apart, 4 * apart)
        assert flags[-1] is (ahead > (0.02 if before else 0.05))
        expected = verdict.temperatures[1 if flags[-1] else 0]
        assert float(made.level(observed)) == pytest.approx(float(expected))
        theirs = made.source_level(observed)
        assert theirs is not None
        assert float(theirs) == pytest.approx(float(verdict.temperatures[1]))
    assert any(flags)
    assert flags[-1] is False


def test_each_temperature_is_of_a_models_own_window() -> None:
    own = rehearsal(line([0.5] + [0.0] * (FEATURES - 1)), line([0.3, 0.1] + [0.0] * (FEATURES - 2)))
    made = RehearsedTemperature(own, compares=True)
    first, second, third = (
        made.judge(twice(windows_of(torch.stack(pair)).float()), torch.tensor(False)).temperatures
        for pair in (
            (drawn(seed=3), drawn(seed=4)),
            (drawn(seed=5), drawn(seed=4)),
            (drawn(seed=3), drawn(seed=6)),
        )
    )
    assert float(first[1]) == float(second[1]) != float(third[1])
    assert float(first[0]) == float(third[0]) != float(second[0])


def test_before_the_first_batch_there_are_50_samples_without_a_shift() -> None:
    made = RehearsedTemperature(rehearsal(flat(0.0), flat(0.3)), compares=True)
    prior, observed = made.rehearsal.prior.float() * 50, made.initial()
    assert observed["windows"].shape == (2, 2, 7 + 29 + CLASSES)
    for speed in range(2):
        torch.testing.assert_close(observed["windows"][:, speed], prior)
    assert float(observed["windows"][0, 0, 0]) == pytest.approx(50)
    assert not bool(observed["trusts_source"])
    own, theirs = made.estimates(observed)
    assert own.value == pytest.approx(0.5)
    assert theirs is not None
    assert theirs.value == pytest.approx(1 / (1 + math.exp(-0.3)))
    alone = RehearsedTemperature(made.rehearsal, compares=False)
    assert alone.source_level(alone.initial()) is None
    assert alone.initial()["windows"].shape[0] == 1
    assert alone.estimates(alone.initial())[1] is None


def test_a_rehearsal_without_a_source_model_cannot_compare() -> None:
    made = RehearsedTemperature(rehearsal(flat(0.0)), compares=True)
    assert not made.compares
    observed, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL)
    assert observed["windows"].shape[0] == 1
    assert not bool(verdict.trusts)


def copied(observed: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in observed.items()}


def alike(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def two_models() -> eq.Rehearsal:
    student = line([0.5] + [0.0] * (FEATURES - 1))
    return rehearsal(student, flat(1.0), lead=flat_lead(0.2), gap=flat_gap(1.0))


def test_nothing_is_written_in_place() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    prior, fresh = made.rehearsal.prior.clone(), made.initial()
    before = copied(fresh)
    logits, source, good = drawn(), drawn(seed=5), ALL.clone()
    copies = logits.clone(), source.clone(), good.clone()
    observed, _ = judged(made, fresh, logits, source, good)
    assert bool(observed["trusts_source"])
    assert alike(fresh, before)
    assert not alike(observed, before)
    after = copied(observed)
    made.level(observed)
    made.estimates(observed)
    judged(made, observed, logits, source, good)
    assert alike(observed, after)
    assert all(torch.equal(*pair) for pair in zip((logits, source, good), copies, strict=True))
    fresh["windows"].zero_()
    assert torch.equal(made.rehearsal.prior, prior)
    assert alike(made.initial(), before)


def test_samples_that_are_not_good_do_not_count() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    logits, source, good = drawn(), drawn(seed=5), ALL.clone()
    good[[0, 7]] = False
    clean, _ = judged(made, made.initial(), logits[good], source[good], good[good])
    logits[0], source[7] = math.nan, math.inf
    found, verdict = judged(made, made.initial(), logits, source, good)
    torch.testing.assert_close(found["windows"], clean["windows"])
    assert bool(verdict.temperatures.isfinite().all())
    none, verdict = judged(made, made.initial(), logits, source, ~ALL)
    assert alike(none, {**made.initial(), "trusts_source": verdict.trusts})


# ---------------------------------------------------------------------- inputs that are new


def believed(value: float, at_rest: float, novelty: float) -> float:
    """Of an estimate above that at rest, nothing at twice the familiar novelty of .3, half at .45."""
    return value - max(value - at_rest, 0.0) * min(max(novelty / 0.3 - 1, 0.0), 1.0)


@pytest.mark.parametrize("novelty", [-0.5, 0.1, 0.45, 0.5, 2.0])
def test_new_inputs_are_answered_as_confidently_as_is_believed(novelty: float) -> None:
    own = rehearsal(flat(3.0, at_rest=0.5), flat(2.0, at_rest=-0.5), familiar=0.3)
    made, new = RehearsedTemperature(own, compares=True), torch.full((50,), 3 * novelty)
    observed, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL, new)
    count = 50 * 2 ** (-50 / 300)
    mean = 3 * novelty * 50 / (count + 50)
    slow = [
        own.prior[at] * count + window_of(mine, other, new)
        for at, (mine, other) in enumerate([(drawn(), drawn(seed=5)), (drawn(seed=5), drawn())])
    ]
    torch.testing.assert_close(observed["windows"][:, 0].double(), torch.stack(slow), rtol=1e-4, atol=1e-4)
    expected = []
    for seen, value, at_rest in zip(slow, (3.0, 2.0), (0.5, -0.5), strict=True):
        aim = aimed(float(seen[1] / seen[0]), believed(value, at_rest, mean), 0.0)
        expected.append(temperature_at(seen, aim))
    assert verdict.temperatures.tolist() == pytest.approx(expected, rel=2e-3)
    own_estimate, theirs = made.estimates(observed)
    assert own_estimate.value == pytest.approx(share(believed(3.0, 0.5, mean)), abs=1e-4)
    assert theirs is not None
    assert theirs.value == pytest.approx(share(believed(2.0, -0.5, mean)), abs=1e-4)
    known = made.estimates(observed, 0.4)
    for found, other in zip(known, made.rehearsal.estimates(observed["windows"][:, 0], 0.4), strict=True):
        check_alike(found, other)


@pytest.mark.parametrize(("novelty", "expected"), [(0.0, False), (0.3, False), (0.6, True), (1.0, True)])
def test_who_answers_is_decided_by_what_is_believed(novelty: float, expected: bool) -> None:
    """The student's estimate is .88 on familiar inputs, but .62 at rest; the source model's is always .73."""
    own = rehearsal(flat(2.0, at_rest=0.5), flat(1.0), familiar=0.3, lead=flat_lead(0.1))
    made, windows = RehearsedTemperature(own, compares=True), two_windows()
    windows[..., 6] = novelty * windows[..., 0]
    assert (lead_of(believed(2.0, 0.5, novelty), 1.0, 0.1, 0.0) > 0.05) is expected
    assert bool(made.judge(windows, torch.tensor(False)).trusts) is expected


@pytest.mark.parametrize(
    ("novelty", "ahead", "lately", "expected"),
    [
        (0.0, -0.3, True, True),  # nothing is new: only the adapted model can be the cause
        (0.0, -0.3, False, False),  # it is over
        (0.6, -0.3, True, False),  # failed first: a shaking camera was answered by the source model
        (0.6, 0.02, True, True),  # a small lead that would not be enough by itself
        (0.6, 0.02, False, False),
    ],
)
def test_disagreement_beyond_rehearsal(novelty: float, ahead: float, lately: bool, expected: bool) -> None:
    own = rehearsal(flat(1.0), flat(1.0), familiar=0.3, disagreement=0.1, lead=flat_lead(3 * ahead))
    made, windows = RehearsedTemperature(own, compares=True), two_windows(0.4)
    windows[..., 6] = novelty * windows[..., 0]
    windows[0, 1, 5] = (0.4 if lately else 0.1) * windows[0, 1, 0]
    assert bool(made.judge(windows, torch.tensor(False)).trusts) is expected


def beyond(process: Process, x: Tensor, times: float) -> Process:
    """The same with a limit that leaves features (f) so many times further than it."""
    apart = ((x - process.mean) * process.scale - process.rows).square().sum(-1).min().sqrt()
    return replace(process, limit=apart / times)


@pytest.mark.parametrize(
    ("novelty", "mine", "theirs", "expected"),
    [
        (
            0.7,
            0.5,
            1.5,
            False,
        ),  # a photograph for a model of written digits: sure, and like nothing rehearsed
        (0.5, 0.5, 1.5, True),  # not all of the inputs are new
        (0.7, 1.5, 1.5, True),  # neither window is like those rehearsed
        (0.7, 0.5, 0.5, True),
    ],
)
def test_an_unknown_source_model_is_not_trusted_before_new_inputs(
    novelty: float, mine: float, theirs: float, expected: bool
) -> None:
    windows = two_windows()
    windows[..., window.NOVEL] = novelty * windows[..., window.COUNT]
    x = window.features(windows[:, 0].double())
    student, source = beyond(flat(0.4), x[0], mine), beyond(flat(1.2), x[1], theirs)
    own = rehearsal(student, source, familiar=0.3, lead=flat_lead(0.2))
    made = RehearsedTemperature(own, compares=True)
    assert bool(made.judge(windows, torch.tensor(False)).trusts) is expected


@pytest.mark.parametrize(("value", "times"), [(3.0, 1.0), (3.0, 2.0), (3.0, 4.0), (3.0, 10.0), (-1.5, 10.0)])
def test_a_high_estimate_falls_to_the_middle_beyond_two_limits(value: float, times: float) -> None:
    """Half way between the accuracy without shift, .5 as a logit, and chance."""
    windows = twice(windows_of(torch.stack([drawn(seed=3)])).float())
    x = window.features(windows[:, 0].double())
    own = rehearsal(beyond(flat(value, at_rest=0.5), x[0], times))
    middle = (0.5 - math.log(CLASSES - 1)) / 2
    fallen = middle + (value - middle) * (2 / max(times, 2)) ** 2 if value > middle else value
    assert own.estimates(windows[:, 0])[0].value == pytest.approx(share(fallen), abs=1e-4)
    made = RehearsedTemperature(own, compares=False)
    found = made.judge(windows, torch.tensor(False)).temperatures
    expected = temperature_at(windows[0, 0], aimed(float(windows[0, 0, 1] / windows[0, 0, 0]), fallen, 0.0))
    assert found.tolist() == pytest.approx([expected], rel=2e-3)


# ---------------------------------------------------------------------- labels


def told(made: RehearsedTemperature, observed: dict[str, Tensor], hits: list[float]) -> dict[str, Tensor]:
    """The observations after labels of answers that were as confident as they were estimated to be right."""
    estimates = made.now(observed).estimates.sigmoid().unsqueeze(1)
    right = torch.tensor(hits).expand(len(estimates), -1)
    ones = torch.ones_like(right)
    sums = label_sums(right, estimates * ones, estimates * ones, estimates * ones, ones)
    return made.told(observed, sums, torch.tensor(float(len(hits))))


def test_without_labels_everything_is_as_it_was_bit_for_bit() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    observed, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL)
    plain = made.judge(observed["windows"], torch.tensor(False))
    assert all(torch.equal(one, other) for one, other in zip(plain, verdict, strict=True))
    both = made.estimates(observed), made.rehearsal.estimates(observed["windows"][:, 0])
    for found, other in zip(*both, strict=True):
        check_alike(found, other)
    assert not bool(observed["labels"].any())


def test_labels_move_estimate_interval_and_temperature() -> None:
    made = RehearsedTemperature(rehearsal(flat(1.5)), compares=False)
    observed, before = judged(made, made.initial(), drawn(scale=6.0), None, ALL)
    free, _ = made.estimates(observed)
    found = [free]
    temperatures = [float(before.temperatures[0])]
    for count in (10, 50, 400):
        after = told(made, observed, [1.0, 0.0] * (count // 2))
        found.append(made.estimates(after)[0])
        temperatures.append(float(made.now(after).temperatures[0]))
        assert float(after["labelled"]) == count
    values = [each.value for each in found]
    assert values == sorted(values, reverse=True) and values[3] == pytest.approx(0.5, abs=0.03)
    assert temperatures == sorted(temperatures) and temperatures[3] > temperatures[0]
    agreeing = made.estimates(told(made, observed, ([1.0] * 9 + [0.0] * 2) * 30))[0]
    assert free.low < agreeing.low < agreeing.value < agreeing.high < free.high
    assert agreeing.inside
    assert found[0].inside and not found[3].inside  # .82 without labels, half of them wrong


def test_labels_are_forgotten_as_the_stream_goes_on() -> None:
    made = RehearsedTemperature(rehearsal(flat(1.5)), compares=False)
    observed, _ = judged(made, made.initial(), drawn(), None, ALL)
    labelled = told(made, observed, [0.0] * 40)
    free, by_labels = made.estimates(observed)[0].value, made.estimates(labelled)[0].value
    after, _ = judged(made, labelled, drawn(), None, ALL)
    assert not bool(after["changed"])
    torch.testing.assert_close(after["labels"], labelled["labels"] * 2 ** (-len(ALL) / 2000))
    assert by_labels < made.estimates(after)[0].value < free
    assert float(after["labelled"]) == 40


def test_what_labels_taught_is_forgotten_as_labels_are() -> None:
    made = RehearsedTemperature(rehearsal(flat(1.5)), compares=False)
    observed, _ = judged(made, made.initial(), drawn(), None, ALL)
    taught = Taught(*(each + 8 for each in Taught.nothing()))
    after, _ = judged(made, made.taught(observed, taught), drawn(), None, ALL)
    assert not bool(after["changed"])
    kept = 2 ** (-len(ALL) / 2000)
    assert float(after["had"].mean()) == pytest.approx(8 * kept)
    assert float(after["acted"].mean()) == pytest.approx(8 * kept)
    assert float(after["taught"].mean()) == 8


@pytest.mark.parametrize(("count", "answers"), [(10, False), (20, False), (300, True)])
def test_few_labels_do_not_change_who_answers(count: int, answers: bool) -> None:
    """Both models are estimated alike; of the labels, the source model has five more in ten right."""
    own = rehearsal(flat(1.0), flat(1.0), lead=flat_lead(0.0), gap=flat_gap(0.0))
    made = RehearsedTemperature(own, compares=True)
    observed = dict(made.answer(made.initial(), drawn(), drawn(), ALL).observed)
    estimates = made.now(observed).estimates.sigmoid().unsqueeze(1)
    ones = torch.ones(2, count)
    hits = torch.stack([(torch.arange(count) % 10 < 4).float(), (torch.arange(count) % 10 < 9).float()])
    sums = label_sums(hits, estimates * ones, ones, ones, ones)
    after = made.told(observed, sums, torch.tensor(float(count)))
    assert bool(made.now(after).trusts) is answers


def test_labels_decide_who_answers() -> None:
    made = RehearsedTemperature(two_models(), compares=True)
    observed, verdict = judged(made, made.initial(), drawn(), drawn(seed=5), ALL)
    assert bool(verdict.trusts)
    estimates = made.now(observed).estimates.sigmoid().unsqueeze(1)
    ones = torch.ones(2, 200)
    hits = torch.stack([torch.ones(200), torch.arange(200) % 2])  # the source model is wrong in half of them
    after = made.told(observed, label_sums(hits, estimates * ones, ones, ones, ones), torch.tensor(200.0))
    assert not bool(made.now(after).trusts)
    own, theirs = made.estimates(after)
    assert theirs is not None
    assert own.value > 0.9 and theirs.value == pytest.approx(0.5, abs=0.05)
