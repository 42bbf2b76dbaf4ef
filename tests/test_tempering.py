import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.tempering import Temperature
from tests.toys import drifted, make

taus = st.lists(st.floats(2**-10, 2**13, width=32), min_size=1, max_size=200)


@settings(deadline=None, derandomize=True)
@given(taus, st.integers(1, 50))
def test_the_running_mean_is_exact_however_the_stream_is_cut(values: list[float], size: int) -> None:
    heat = Temperature("mean")
    for start in range(0, len(values), size):
        heat.observe(torch.tensor(values[start : start + size]))
    assert heat.running() == pytest.approx(math.fsum(values) / len(values), rel=1e-9)


@settings(deadline=None, derandomize=True)
@given(taus, st.integers(1, 50))
def test_the_running_median_is_within_one_percent(values: list[float], size: int) -> None:
    heat = Temperature("median")
    for start in range(0, len(values), size):
        heat.observe(torch.tensor(values[start : start + size]))
    lower_middle = sorted(values)[(len(values) - 1) // 2]
    assert heat.running() == pytest.approx(lower_middle, rel=0.01)


def test_the_median_sketch_has_a_fixed_size_and_bounded_ends() -> None:
    heat = Temperature("median")
    size = heat.state()["sketch"].numel()
    for seed in range(20):
        heat.observe(torch.rand(1000, generator=torch.Generator().manual_seed(seed)) * 5)
    heat.observe(torch.tensor([1e-30, 1e30]))
    assert heat.state()["sketch"].numel() == size
    assert int(heat.state()["count"]) == 20_002
    assert 2.4 < heat.running() < 2.6


@pytest.mark.parametrize("kind", ["mean", "median", "sample", "none"])
def test_nothing_seen_is_temperature_one(kind: str) -> None:
    model, source = make()
    adapter = eq.create("dec", model, source, tempering=kind)
    x = drifted(6)
    if kind != "sample":
        with torch.no_grad():
            assert torch.allclose(adapter.predict(x), model(x))


@pytest.mark.parametrize("kind", ["mean", "median", "none"])
def test_a_scalar_temperature_leaves_the_classes_alone(kind: str) -> None:
    model, source = make()
    plain = eq.create("dec", model, source, tempering="none")
    tempered = eq.create("dec", model, source, tempering=kind)
    for seed in range(3):
        x = drifted(8, seed)
        assert torch.equal(plain(x).argmax(1), tempered(x).argmax(1))
    assert torch.equal(plain.predict(x).argmax(1), tempered.predict(x).argmax(1))


def test_unknown_tempering() -> None:
    model, source = make()
    with pytest.raises(
        eq.errors.OptionError, match="expected tempering as one of mean, median, sample, none"
    ):
        eq.create("dec", model, source, tempering="mode")
