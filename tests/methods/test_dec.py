"""DEC against formulas written out here and in `byhand`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot, step_of


class ByHand(by.ByHand):
    """The student; `teacher` is the source model."""

    def __init__(self, model: nn.Sequential, source: eq.SourceStatistics, t_min: float, t_max: float) -> None:
        super().__init__(model, [name for name, _ in model.named_parameters()])
        self.teacher, self.statistics, self.t_min, self.t_max = by.ByHand(model), source, t_min, t_max
        self.taus: list[float] = []

    def regularizer(self, z: Tensor) -> tuple[Tensor, Tensor]:
        h = by.entropy(z) / math.log(2)
        contrast = 1 / (1 + (-(h - self.statistics.h0) / math.sqrt(math.log2(4))).exp())
        t = self.t_min + contrast * (self.t_max - self.t_min)
        return t, t * self.statistics.kappa / (z * z).sum(1).sqrt()

    def step(self, x: Tensor, reading: str, rate: float, momentum: float) -> tuple[Tensor, Tensor]:
        z = self.teacher.predict(x)
        t, tau = self.regularizer(z)
        self.taus += tau.tolist()
        self.watch()
        logits = self.forward(x, momentum)
        s = by.softmax(logits)
        if reading == "paper":
            loss = tau.mean() ** 2 * -(by.softmax(z / tau[:, None]) * s.log()).sum(1).mean()
        else:
            q = by.softmax(z / t[:, None]).clamp(1e-7, 1 - 1e-7)
            each = -(s * (q + 1e-7).log() + (1 - s) * (1 - q + 1e-7).log())
            loss = t.mean() ** 2 * each.mean(1).mean()
        for name, gradient in self.slope(loss).items():
            self.weights[name] = self.weights[name].detach() - rate * gradient
        return logits.detach(), tau


def measured(model: nn.Module) -> eq.SourceStatistics:
    x = torch.randn(33, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return eq.SourceStatistics.measure(model, [x], progress=False)


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
@pytest.mark.parametrize("reading", ["paper", "released"])
@pytest.mark.parametrize("momentum", [0.01, 0.3])
def test_both_readings_are_exact(reading: str, source_copy: str, momentum: float) -> None:
    model = by.flat_model()
    source = measured(model)
    options: dict[str, Any] = {
        "learning_rate": 0.05,
        "t_min": 1.2,
        "t_max": 2.75,
        "source_copy": source_copy,
        "tempering": "mean",
    }
    adapter = eq.create("dec", model, source, reading=reading, norm_momentum=momentum, **options)
    expected = ByHand(model, source, 1.2, 2.75)
    for x in by.stream(3):
        logits, tau = expected.step(x, reading, 0.05, momentum)
        assert torch.allclose(adapter(x), logits / tau.mean(), rtol=1e-9, atol=1e-12)
    for name, parameter in adapter.student.named_parameters():
        assert torch.allclose(parameter, expected.weights[name], rtol=1e-9, atol=1e-12), name
    assert torch.allclose(adapter.student.get_buffer("norm.running_mean"), expected.mean)
    assert torch.allclose(adapter.student.get_buffer("norm.running_var"), expected.var)
    x = by.stream(1, rows=5)[0]
    mean = sum(expected.taus) / len(expected.taus)
    assert torch.allclose(adapter.predict(x), expected.predict(x) / mean, rtol=1e-9, atol=1e-12)


def test_the_defaults_are_the_papers() -> None:
    model = by.flat_model()
    source = measured(model)
    adapter, stated = eq.DEC(model, source), eq.DEC(model, source, reading="paper", tempering="mean")
    assert adapter.options == stated.options
    assert (adapter.options["parameters"], adapter.options["norm_momentum"]) == ("all", 0.01)
    assert set(adapter.learned) == set(dict(model.named_parameters()))
    expected = ByHand(model, source, 1.0, 3.0)
    for x in by.stream(2):
        logits, tau = expected.step(x, "paper", 1e-7, 0.01)
        assert torch.allclose(adapter(x), logits / tau.mean(), rtol=1e-9, atol=1e-12)


def test_the_reading_that_became_poise_is_named() -> None:
    model = by.flat_model()
    reading: Any = "steady"
    for make_it in (eq.DEC, partial(eq.create, "dec")):
        with pytest.raises(
            eq.errors.OptionError, match=r'the method "poise" now, eq\.Poise\(model, source\)'
        ):
            make_it(model, measured(model), reading=reading)


def test_the_default_rates_of_the_readings() -> None:
    model = by.flat_model()
    for reading, rate in {"paper": 1e-7, "released": 1e-3}.items():
        adapter = eq.create("dec", model, measured(model), reading=reading)
        assert adapter.options["learning_rate"] == rate
        expected = ByHand(model, measured(model), 1.0, 3.0)
        x = by.stream(1)[0]
        adapter(x)
        expected.step(x, reading, rate, 0.01)
        start = model.get_parameter("head.weight").detach()
        moved = expected.weights["head.weight"] - start
        assert float(moved.abs().max()) > 0
        came = adapter.student.get_parameter("head.weight").detach() - start
        assert torch.allclose(came, moved, rtol=1e-6, atol=1e-15)


def middle(tau: Tensor) -> Tensor:
    return tau.sort().values[(len(tau) - 1) // 2]


@pytest.mark.parametrize(
    ("tempering", "divisor"),
    [
        ("mean", lambda tau: tau.sum() / len(tau)),
        ("median", middle),
        ("sample", lambda tau: tau[:, None]),
        ("none", lambda tau: 1.0),
    ],
)
def test_tempering_divides_by_the_batch_in_a_stream(tempering: str, divisor: Callable[[Tensor], Any]) -> None:
    model = by.flat_model()
    source = measured(model)
    adapter = eq.create("dec", model, source, tempering=tempering)
    expected = ByHand(model, source, 1.0, 3.0)
    for x in by.stream(2, rows=6):
        logits, tau = expected.step(x, "paper", 1e-7, 0.01)
        assert torch.allclose(adapter(x), logits / divisor(tau))
    taus = torch.tensor(expected.taus, dtype=torch.float64)
    seen = expected.regularizer(expected.teacher.predict(x))[1] if tempering == "sample" else taus
    tolerance = 1e-2 if tempering == "median" else 1e-9
    assert torch.allclose(adapter.predict(x), expected.predict(x) / divisor(seen), rtol=tolerance)
    # predict learns nothing
    before = snapshot(adapter)
    adapter.predict(x)
    assert same(before, snapshot(adapter))


def held_bytes(adapter: eq.Adapter) -> int:
    """The bytes of all the weights an adapter holds, each counted once."""
    tensors: list[Tensor] = [*adapter.parameters(), *adapter.buffers()]
    tensors += adapter.source_copy.held().values()
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())


def test_swapped_and_resident_agree_and_swapped_holds_less() -> None:
    model, source = make()
    adapters = [
        eq.DEC(model, source, parameters="norm", source_copy=kind) for kind in ("resident", "swapped")
    ]
    for seed in range(4):
        left, right = (adapter(drifted(8, seed)) for adapter in adapters)
        assert torch.equal(left, right)
    left, right = (adapter.predict(drifted(8)) for adapter in adapters)
    assert torch.equal(left, right)
    resident, swapped = (held_bytes(adapter) for adapter in adapters)
    model_bytes = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    assert resident == 2 * model_bytes
    assert swapped < 1.2 * model_bytes  # the normalisation layers twice, the rest once


@pytest.mark.parametrize(
    ("which", "moved"),
    [
        ("all", {"first.weight", "first.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}),
        ("norm", {"norm.weight", "norm.bias"}),
        (["head.*"], {"head.weight", "head.bias"}),
        (["head"], {"head.weight", "head.bias"}),
        (["*.bias"], {"first.bias", "norm.bias", "head.bias"}),
    ],
)
def test_only_the_chosen_parameters_move(which: Any, moved: set[str]) -> None:
    model = by.flat_model()
    adapter = eq.DEC(model, measured(model), parameters=which, learning_rate=0.1)
    for x in by.stream(2):
        adapter(x)
    changed = {n for n, p in adapter.student.named_parameters() if not torch.equal(p, model.get_parameter(n))}
    # The bias before a batch norm has no gradient but rounding.
    assert changed | {"first.bias"} == moved | {"first.bias"}
    untouched = {n for n, p in adapter.student.named_parameters() if not p.requires_grad}
    assert untouched == set(dict(model.named_parameters())) - moved


def test_a_batch_of_one_is_normalised_by_running_statistics() -> None:
    model, source = make("batch_norm")
    adapter = eq.DEC(model, source, tempering="none", learning_rate=0.1, engine="eager")
    x = drifted(1)
    with torch.no_grad():
        assert torch.equal(adapter(x), model(x))
    assert step_of(adapter).updated
    name = "1.running_mean"
    assert torch.equal(adapter.student.get_buffer(name), model.get_buffer(name))


def test_autocast_sees_every_update() -> None:
    # Autocast caches the cast weights: without care, all batches in one context see those of the first.
    model, source = make("norm_free")
    inside, outside = (eq.DEC(model, source, learning_rate=1.0) for _ in range(2))
    batches = [drifted(8, seed) for seed in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside.predict(batches[0])
        together = [inside(x) for x in batches]
    for x, logits in zip(batches, together, strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(outside(x), logits)
    assert together[0].dtype == torch.bfloat16


def test_norm_only_on_a_model_without_norms_says_what_is_missing() -> None:
    model, source = make("norm_free")
    with pytest.raises(eq.errors.ModelError, match='parameters="all" works'):
        eq.DEC(model, source, parameters="norm")


def test_at_rate_zero_only_statistics_and_temperature_adapt() -> None:
    model = by.flat_model()
    adapter = eq.DEC(model, measured(model), learning_rate=0)
    adapter(by.stream(1)[0])
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "the learning rate is 0")
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())
    name = "norm.running_mean"
    assert not torch.equal(adapter.student.get_buffer(name), model.get_buffer(name))
    assert adapter.temperature != 1.0


def test_record_of_a_batch() -> None:
    model = by.flat_model()
    adapter = eq.DEC(model, measured(model))
    assert adapter.last is None
    logits = adapter(by.stream(1, rows=9)[0])
    step = adapter.last
    assert step is not None
    assert (step.samples, step.used, step.set_aside, step.updated, step.reason) == (9, 9, 0, True, "")
    p = logits.softmax(1)
    assert step.entropy == pytest.approx(float(-(p * p.log2()).sum(1).mean()))
    expected = ByHand(model, measured(model), 1.0, 3.0)
    raw, tau = expected.step(by.stream(1, rows=9)[0], "paper", 1e-7, 0.01)
    assert step.temperature == pytest.approx(float(tau.mean()))
    assert step.tau_quantiles is not None
    assert step.tau_quantiles[2] == pytest.approx(float(tau.median()))
    assert list(step.tau_quantiles) == sorted(step.tau_quantiles)
    assert step.loss is not None
    assert step.loss > 0
    assert torch.allclose(logits, raw / tau.mean())
