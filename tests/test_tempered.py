"""Tempering of any adapter: by an option, or around one that exists already."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.temper import Tempering
from equipoise.registry import method_class
from tests.support.models import CLASSES, Counting, drifted, images, make, measured, rehearsed, same, snapshot

LIVELY: dict[str, dict[str, Any]] = {
    "source": {},
    "norm": {},
    "tent": {"learning_rate": 0.05},
    "eta": {"learning_rate": 0.05, "margin": 1.0, "epsilon": 2.0},
    "eata": {"learning_rate": 0.05, "margin": 1.0, "epsilon": 2.0},
    "sar": {"learning_rate": 0.05, "margin": 1.0},
    "deyo": {"learning_rate": 0.05, "margin": 1.0, "min_drop": -1.0},
    "poem": {"learning_rate": 0.05, "margin": 1.0},
    "rdumb": {"base": "tent", "every": 20, "options": {"learning_rate": 0.05}},
    "t3a": {},
    "sotta": {"confidence": 0.0, "every": 4, "capacity": 6},
    "rotta": {"learning_rate": 0.02, "every": 4, "capacity": 6},
    "petta": {"learning_rate": 0.02, "every": 4, "capacity": 6},
    "foa_shift": {"decay": 0.2},
    "lame": {"neighbours": 3},
    "roid": {"learning_rate": 0.05},
    "cmf": {"learning_rate": 0.05},
    "cotta": {"views": 3, "confidence": 1.0, "restore": 0.2},
    "rmt": {"learning_rate": 0.05},
    "memo": {"views": 2, "learning_rate": 0.5},
    "dec": {"learning_rate": 0.01, "tempering": "none"},
    "poise": {"tempering": "none"},
    "shot_im": {"learning_rate": 0.05},
    "pseudo_label": {"learning_rate": 0.05, "confidence": 0.2},
    "bn_alpha": {},
    "bn_ema": {},
}
FORWARDS = {"dec": 2, "sar": 2, "deyo": 2, "roid": 2, "cmf": 2, "cotta": 3, "rmt": 3, "memo": 16}
"""Forwards of a batch, of the methods that make more than one."""

ON_IMAGES = ("deyo", "roid", "cmf", "cotta", "rmt", "memo", "rotta", "petta")
"""Methods that make views of images, and adapt to nothing else."""

every_method = pytest.mark.parametrize("method", list(LIVELY))
scalars = pytest.mark.parametrize("tempering", ["mean", "median"])
kinds = pytest.mark.parametrize("tempering", ["mean", "median", "sample"])


def stream() -> list[Tensor]:
    return [drifted(rows, seed) for seed, rows in enumerate((8, 1, 5, 12))]


def create(method: str, model: nn.Module, source: eq.SourceStatistics, **options: Any) -> eq.Adapter:
    return eq.create(method, model, source, **{**LIVELY[method], **options})


def source_tau(
    model: nn.Module, source: eq.SourceStatistics, x: Tensor, t_min: float, t_max: float
) -> Tensor:
    """The certainty regulariser of the untouched model's logits, written out."""
    with torch.no_grad():
        z: Tensor = model(x)
    p = z.softmax(1)
    h = -(p * p.log2()).sum(1)
    t = t_min + (t_max - t_min) / (1 + (-(h - source.h0) / math.sqrt(math.log2(CLASSES))).exp())
    return t * source.kappa / z.square().sum(1).sqrt()


def temperature_of(tau: Tensor, tempering: Tempering) -> Tensor:
    if tempering == "sample":
        return tau[:, None]
    return tau.mean() if tempering == "mean" else tau.sort().values[(len(tau) - 1) // 2]


def test_every_method_is_here() -> None:
    assert sorted(LIVELY) == eq.list_methods()


@every_method
@kinds
def test_answers_are_divided_by_tau_of_the_source_model(method: str, tempering: Tempering) -> None:
    model, source = make()
    reach = {"t_min": 1.2, "t_max": 2.5}
    own: dict[str, Any] = reach if method == "dec" else {}  # it learns with the range, too
    raw = create(method, model, source, **own)
    by_option = create(method, model, source, tempering=tempering, **reach)
    tempered = eq.Tempered(create(method, model, source, **own), source, tempering=tempering, **reach)
    for x in stream():
        tau = source_tau(model, source, x, **reach)
        expected = raw(x) / temperature_of(tau, tempering)
        assert torch.allclose(tempered(x), expected, atol=1e-5)
        assert torch.allclose(by_option(x), expected, atol=1e-5)
        assert tempered.last is not None
        assert tempered.last == by_option.last
        assert tempered.last.temperature == pytest.approx(
            float(temperature_of(tau, tempering).mean()), rel=1e-4
        )


@every_method
@kinds
def test_what_is_learned_and_who_is_right_stay_exactly_the_same(method: str, tempering: Tempering) -> None:
    model, source = make()
    raw = create(method, model, source)
    by_option = create(method, model, source, tempering=tempering)
    tempered = eq.Tempered(create(method, model, source), source, tempering=tempering)
    for x in stream():
        winners = raw(x).argmax(1)
        assert torch.equal(by_option(x).argmax(1), winners)
        assert torch.equal(tempered(x).argmax(1), winners)
        winners = raw.predict(x).argmax(1)
        assert torch.equal(by_option.predict(x).argmax(1), winners)
        assert torch.equal(tempered.predict(x).argmax(1), winners)
    learned = {name: t for name, t in snapshot(raw).items() if ".temperature." not in name}
    for adapter in (by_option, tempered.adapter):
        assert same(learned, {n: t for n, t in snapshot(adapter).items() if ".temperature." not in n})


def calls(function: Any, x: Tensor) -> int:
    Counting.forwards = 0
    function(x)
    return Counting.forwards


@every_method
@kinds
def test_the_source_forward_is_shared_where_the_method_makes_it(method: str, tempering: Tempering) -> None:
    inner, _ = make()
    model = Counting(inner)
    source = measured(model, [images(16)])
    options = {"every": 1000} if method in ("sotta", "rotta", "petta") else {}
    shares = method in ("source", "t3a", "lame", "foa_shift", "dec", "cotta")
    raw = create(method, model, source, **options)
    by_option = create(method, model, source, tempering=tempering, **options)
    tempered = eq.Tempered(create(method, model, source, **options), source, tempering=tempering)
    more = 0 if shares else 1
    x = drifted(8)
    assert calls(by_option, x) == calls(tempered, x) == calls(raw, x) + more
    assert calls(raw, x) == FORWARDS.get(method, 1)
    asks = 1 if tempering == "sample" and method not in ("source", "t3a", "lame", "foa_shift") else 0
    assert calls(by_option.predict, x) == calls(tempered.predict, x) == calls(raw.predict, x) + asks


@pytest.mark.parametrize("method", [name for name in LIVELY if not method_class(name).needs_source])
def test_source_statistics_are_asked_for_only_where_they_are_needed(method: str) -> None:
    model, source = make()
    adapter = eq.create(method, model)
    assert adapter(drifted(8)).shape == (8, CLASSES)
    with pytest.raises(eq.errors.SourceError, match="needs source statistics"):
        eq.create(method, model, tempering="mean")
    tempered = eq.Tempered(adapter, source)  # by the median
    assert tempered(drifted(8)).shape == (8, CLASSES)
    assert tempered.temper.kind == "median"


def options_but_the_head(adapter: eq.Adapter) -> dict[str, Any]:
    return {name: value for name, value in adapter.options.items() if name != "head"}


@every_method
@scalars
def test_a_tempered_adapter_is_detached_saved_loaded_and_reset(
    method: str, tempering: Tempering, tmp_path: Path
) -> None:
    model, source = make()
    adapter = create(method, model, source, **({"t_max": 2.0} if method == "dec" else {}))
    tempered = eq.Tempered(adapter, source, tempering=tempering, t_max=2.0)
    own = (adapter.temper, adapter.source, options_but_the_head(adapter))
    fresh, untouched = tempered.state_dict(), tempered.predict(drifted(4))
    tempered.adapt(stream(), progress=False)
    state, expected = tempered.state_dict(), tempered.predict(drifted(4))
    assert torch.allclose(tempered.detach()(drifted(4)), expected, atol=1e-5)
    held = adapter.footprint()
    assert tempered.footprint().total.numbers > held.total.numbers  # its temperature
    assert tempered.footprint().paper == held.paper

    tempered.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert type(loaded) is type(tempered.adapter)
    assert (loaded.options["tempering"], loaded.options["t_max"]) == (tempering, 2.0)
    assert torch.equal(loaded.predict(drifted(4)), expected)
    assert torch.equal(loaded(drifted(6)), tempered(drifted(6)))
    assert (adapter.temper, adapter.source, options_but_the_head(adapter)) == own
    assert adapter.options.get("head", "8") == "8"  # as T3A found it in a forward

    tempered.reset()
    assert tempered.last is None
    assert same(fresh, tempered.state_dict())
    assert torch.equal(tempered.predict(drifted(4)), untouched)
    tempered.load_state_dict(state)
    assert torch.equal(tempered.predict(drifted(4)), expected)
    assert tempered.train().eval() is tempered


def test_it_replaces_the_adapters_own_tempering() -> None:
    model, source = make()
    own, inner = (eq.DEC(model, source, tempering="mean", learning_rate=0.01) for _ in range(2))
    tempered = eq.Tempered(inner, source, tempering="median")
    for x in stream():
        tau = source_tau(model, source, x, 1.0, 3.0)
        assert torch.allclose(tempered(x) * temperature_of(tau, "median"), own(x) * tau.mean(), atol=1e-5)


def test_decs_range_and_statistics_are_those_of_its_loss() -> None:
    model, source = make()
    adapter = eq.DEC(model, source, t_max=2.0)
    with pytest.raises(eq.errors.OptionError, match=r"expected t_min=1.0 and t_max=2.0, with which dec"):
        eq.Tempered(adapter, source, t_max=3.0)
    with pytest.raises(eq.errors.SourceError, match="with which dec learns"):
        eq.Tempered(adapter, replace(source, h0=source.h0 / 2))


def test_a_tempered_eata_is_saved_with_the_fisher_diagonal_it_learns_with(tmp_path: Path) -> None:
    model, source = make()
    tempered = eq.Tempered(create("eata", model, source), replace(source, fisher={}))
    tempered(drifted(8))
    tempered.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert torch.equal(loaded(drifted(8, 1)), tempered(drifted(8, 1)))


class Mute(nn.Module):
    """Returns zero logits for dark inputs until it has adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, CLASSES, bias=False)
        nn.init.constant_(self.norm.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x).relu())
        return logits


@pytest.mark.parametrize("method", [name for name in LIVELY if name not in ("dec", "poise", *ON_IMAGES)])
@kinds
def test_samples_that_the_source_cannot_judge_learn_and_are_answered(
    method: str, tempering: Tempering
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Mute().eval()
    source = eq.SourceStatistics.measure(
        model, [torch.randn(32, 4) + 2], fisher=True, features=True, progress=False
    )
    raw = create(method, model, source)
    tempered = create(method, model, source, tempering=tempering)
    for seed, shift in enumerate((2.0, 0.5, -9.0)):  # the last batch is dark altogether
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) + shift
        if seed == 1:  # a sample that is dark for the source, and not among these
            x = x - 9
            x[0], x[3] = 3.0, torch.tensor([0.5, 0.4, 0.9, 0.2])
        else:
            x[3] = -5.0
        with torch.no_grad():
            assert not model(x)[3].any()
        expected, came = raw(x), tempered(x)
        assert bool(came.isfinite().all())
        assert torch.equal(came.argmax(1), expected.argmax(1))
        assert tempered.last is not None
        assert tempered.last.set_aside == 0
        assert torch.equal(tempered.predict(x).argmax(1), raw.predict(x).argmax(1))
    learned = {name: t for name, t in snapshot(raw).items() if ".temperature." not in name}
    assert same(learned, {n: t for n, t in snapshot(tempered).items() if ".temperature." not in n})


def test_wrong_arguments_are_refused() -> None:
    model, source = make()
    adapter, other = eq.create("tent", model), eq.create("tent", make(seed=1)[0])
    tempered: Any = eq.Tempered
    with pytest.raises(eq.errors.OptionError, match="expected an equipoise adapter, got Sequential"):
        tempered(model, source)
    with pytest.raises(eq.errors.SourceError, match=r"expected source as SourceStatistics.* got NoneType"):
        tempered(adapter, None)
    with pytest.raises(eq.errors.SourceError, match="another model"):
        tempered(other, source)
    with pytest.raises(eq.errors.OptionError, match="expected tempering as one of"):
        tempered(adapter, source, tempering="max")
    with pytest.raises(eq.errors.OptionError, match="t_min <= t_max"):
        tempered(adapter, source, t_min=3.0, t_max=2.0)
    with pytest.raises(eq.errors.OptionError, match="cannot be detached"):
        tempered(adapter, source, tempering="sample").detach()
    with pytest.raises(eq.errors.OptionError, match="strict=True"):
        tempered(adapter, source).load_state_dict({}, strict=False)
    with pytest.raises(eq.errors.StateError, match="lacks"):
        tempered(adapter, source).load_state_dict({})


def test_the_last_record_is_that_of_both() -> None:
    model, source = make()
    adapter = eq.create("tent", model)
    tempered = eq.Tempered(adapter, source)
    tempered(drifted(8))
    assert adapter.last == tempered.last
    adapter(drifted(4))
    assert tempered.last is not None
    assert tempered.last.samples == 4
    adapter.reset()
    assert tempered.last is None


def test_a_reset_forgets_what_was_estimated() -> None:
    model, source = make("batch_norm")
    tempered = eq.Tempered(eq.create("tent", model, source), rehearsed(source, "tent"), "rehearsed")
    fresh = tempered.accuracy
    tempered(drifted(8))
    assert tempered.accuracy != fresh
    tempered.reset()
    assert tempered.accuracy == fresh
