"""Temperatures of streams: of tau, and the range of those that were rehearsed."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.calibration.temper import TauTemperature, Temper, Tempering, agreement_temperature
from equipoise.errors import OptionError
from tests.support.models import drifted, make
from tests.support.rehearsals import flat, rehearsal

taus = st.lists(st.floats(2**-10, 2**13, width=32), min_size=1, max_size=200)


@settings(deadline=None, derandomize=True)
@given(taus, st.integers(1, 50))
def test_the_running_mean_is_exact_however_the_stream_is_cut(values: list[float], size: int) -> None:
    temperature = TauTemperature("mean")
    observed = temperature.initial()
    for start in range(0, len(values), size):
        tau = torch.tensor(values[start : start + size])
        observed = temperature.after(observed, tau, torch.ones(()))
    assert float(temperature.level(observed)) == pytest.approx(math.fsum(values) / len(values), rel=1e-9)


@settings(deadline=None, derandomize=True)
@given(taus, st.integers(1, 50))
def test_the_running_median_is_within_one_percent(values: list[float], size: int) -> None:
    temperature = TauTemperature("median")
    observed = temperature.initial()
    for start in range(0, len(values), size):
        tau = torch.tensor(values[start : start + size])
        observed = temperature.after(observed, tau, torch.ones(()))
    lower_middle = sorted(values)[(len(values) - 1) // 2]
    assert float(temperature.level(observed)) == pytest.approx(lower_middle, rel=0.01)


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
    _, source = make()
    with pytest.raises(OptionError, match=r"expected 0\.25 <= t_min <= t_max <= 32 .*, got t_min="):
        Temper("rehearsed", source, t_min, t_max, rehearsal(flat(0.0)))


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
