"""DEC against formulas written out here, on a model written out here: linear, batch norm, ReLU, linear."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, make, same, snapshot, step_of

EPSILON = 1e-5  # nn.BatchNorm1d's


def small_model(seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).double()
    with torch.no_grad():
        for tensor in (*model.parameters(), model.get_buffer("1.running_mean")):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        variance = model.get_buffer("1.running_var")
        variance.copy_(torch.rand(8, generator=generator, dtype=torch.float64) + 0.5)
    return model.eval()


class ByHand:
    """The student and teacher of `small_model` as plain tensors and sums."""

    def __init__(self, model: nn.Sequential, source: eq.SourceStatistics, t_min: float, t_max: float) -> None:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.teacher = state
        self.student = {n: t.clone().requires_grad_() for n, t in state.items() if t.dtype == torch.float64}
        self.mean, self.var = state["1.running_mean"].clone(), state["1.running_var"].clone()
        self.source, self.t_min, self.t_max = source, t_min, t_max
        self.taus: list[float] = []

    @staticmethod
    def network(w: dict[str, Tensor], x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        h = x @ w["0.weight"].T + w["0.bias"]
        h = (h - mean) / (var + EPSILON).sqrt() * w["1.weight"] + w["1.bias"]
        return h.clamp(min=0) @ w["3.weight"].T + w["3.bias"]

    def regularizer(self, z: Tensor) -> tuple[Tensor, Tensor]:
        p = z.exp() / z.exp().sum(1, keepdim=True)
        h = -(p * p.log()).sum(1) / math.log(2)
        contrast = 1 / (1 + (-(h - self.source.h0) / math.sqrt(math.log2(4))).exp())
        t = self.t_min + contrast * (self.t_max - self.t_min)
        return t, t * self.source.kappa / (z * z).sum(1).sqrt()

    def step(self, x: Tensor, reading: str, rate: float, momentum: float) -> tuple[Tensor, Tensor]:
        w = self.teacher
        z = self.network(w, x, w["1.running_mean"], w["1.running_var"])
        t, tau = self.regularizer(z)
        self.taus += tau.tolist()
        h = x @ self.student["0.weight"].T + self.student["0.bias"]
        mean, var = h.mean(0), ((h - h.mean(0)) ** 2).mean(0)
        logits = self.network(self.student, x, mean, var)
        s = logits.exp() / logits.exp().sum(1, keepdim=True)
        if reading == "paper":
            q = (z / tau[:, None]).exp()
            q = q / q.sum(1, keepdim=True)
            loss = tau.mean() ** 2 * -(q * s.log()).sum(1).mean()
        else:
            q = (z / t[:, None]).exp()
            q = (q / q.sum(1, keepdim=True)).clamp(1e-7, 1 - 1e-7)
            each = -(s * (q + 1e-7).log() + (1 - s) * (1 - q + 1e-7).log())
            loss = t.mean() ** 2 * each.mean(1).mean()
        learned = {n: p for n, p in self.student.items() if "running" not in n}
        gradients = torch.autograd.grad(loss, list(learned.values()))
        with torch.no_grad():
            for parameter, gradient in zip(learned.values(), gradients, strict=True):
                parameter -= rate * gradient
        n = len(x)
        self.mean = (1 - momentum) * self.mean + momentum * mean.detach()
        self.var = (1 - momentum) * self.var + momentum * var.detach() * n / (n - 1)
        return logits.detach(), tau

    def predict(self, x: Tensor) -> Tensor:
        return self.network(self.student, x, self.mean, self.var).detach()


def stream(batches: int, rows: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 6, generator=generator, dtype=torch.float64) * 2 + 1 for _ in range(batches)]


def measured(model: nn.Module) -> eq.SourceStatistics:
    x = torch.randn(33, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return eq.SourceStatistics.measure(model, [x], progress=False)


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
@pytest.mark.parametrize("reading", ["paper", "released"])
@pytest.mark.parametrize("momentum", [0.01, 0.3])
def test_both_readings_are_exact(reading: str, source_copy: str, momentum: float) -> None:
    model = small_model()
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
    for x in stream(3):
        logits, tau = expected.step(x, reading, 0.05, momentum)
        assert torch.allclose(adapter(x), logits / tau.mean(), rtol=1e-9, atol=1e-12)
    for name, parameter in adapter.student.named_parameters():
        assert torch.allclose(parameter, expected.student[name], rtol=1e-9, atol=1e-12), name
    assert torch.allclose(adapter.student.get_buffer("1.running_mean"), expected.mean)
    assert torch.allclose(adapter.student.get_buffer("1.running_var"), expected.var)
    x = stream(1, rows=5)[0]
    mean = sum(expected.taus) / len(expected.taus)
    assert torch.allclose(adapter.predict(x), expected.predict(x) / mean, rtol=1e-9, atol=1e-12)


def test_the_defaults_are_the_papers() -> None:
    model = small_model()
    source = measured(model)
    adapter, stated = eq.DEC(model, source), eq.DEC(model, source, reading="paper", tempering="mean")
    assert adapter.options == stated.options
    assert (adapter.options["parameters"], adapter.options["norm_momentum"]) == ("all", 0.01)
    assert set(adapter.learned) == set(dict(model.named_parameters()))
    expected = ByHand(model, source, 1.0, 3.0)
    for x in stream(2):
        logits, tau = expected.step(x, "paper", 1e-7, 0.01)
        assert torch.allclose(adapter(x), logits / tau.mean(), rtol=1e-9, atol=1e-12)


def test_the_reading_that_became_poise_is_named() -> None:
    model = small_model()
    reading: Any = "steady"
    for make_it in (eq.DEC, partial(eq.create, "dec")):
        with pytest.raises(
            eq.errors.OptionError, match=r'the method "poise" now, eq\.Poise\(model, source\)'
        ):
            make_it(model, measured(model), reading=reading)


def test_the_default_rates_of_the_readings() -> None:
    model = small_model()
    for reading, rate in {"paper": 1e-7, "released": 1e-3}.items():
        adapter = eq.create("dec", model, measured(model), reading=reading)
        assert adapter.options["learning_rate"] == rate
        expected = ByHand(model, measured(model), 1.0, 3.0)
        x = stream(1)[0]
        adapter(x)
        expected.step(x, reading, rate, 0.01)
        start = model.get_parameter("3.weight").detach()
        moved = expected.student["3.weight"].detach() - start
        assert float(moved.abs().max()) > 0
        came = adapter.student.get_parameter("3.weight").detach() - start
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
    model = small_model()
    source = measured(model)
    adapter = eq.create("dec", model, source, tempering=tempering)
    expected = ByHand(model, source, 1.0, 3.0)
    for x in stream(2, rows=6):
        logits, tau = expected.step(x, "paper", 1e-7, 0.01)
        assert torch.allclose(adapter(x), logits / divisor(tau))
    taus = torch.tensor(expected.taus, dtype=torch.float64)
    z = ByHand.network(
        expected.teacher, x, expected.teacher["1.running_mean"], expected.teacher["1.running_var"]
    )
    seen = expected.regularizer(z)[1] if tempering == "sample" else taus
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
        ("all", {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
        ("norm", {"1.weight", "1.bias"}),
        (["3.*"], {"3.weight", "3.bias"}),
        (["3"], {"3.weight", "3.bias"}),
        (["*.bias"], {"0.bias", "1.bias", "3.bias"}),
    ],
)
def test_only_the_chosen_parameters_move(which: Any, moved: set[str]) -> None:
    model = small_model()
    adapter = eq.DEC(model, measured(model), parameters=which, learning_rate=0.1)
    for x in stream(2):
        adapter(x)
    changed = {n for n, p in adapter.student.named_parameters() if not torch.equal(p, model.get_parameter(n))}
    # The bias before a batch norm has no gradient but rounding.
    assert changed | {"0.bias"} == moved | {"0.bias"}
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
    model = small_model()
    adapter = eq.DEC(model, measured(model), learning_rate=0)
    adapter(stream(1)[0])
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "the learning rate is 0")
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())
    name = "1.running_mean"
    assert not torch.equal(adapter.student.get_buffer(name), model.get_buffer(name))
    assert adapter.temperature != 1.0


def test_record_of_a_batch() -> None:
    model = small_model()
    adapter = eq.DEC(model, measured(model))
    assert adapter.last is None
    logits = adapter(stream(1, rows=9)[0])
    step = adapter.last
    assert step is not None
    assert (step.samples, step.used, step.set_aside, step.updated, step.reason) == (9, 9, 0, True, "")
    p = logits.softmax(1)
    assert step.entropy == pytest.approx(float(-(p * p.log2()).sum(1).mean()))
    expected = ByHand(model, measured(model), 1.0, 3.0)
    raw, tau = expected.step(stream(1, rows=9)[0], "paper", 1e-7, 0.01)
    assert step.temperature == pytest.approx(float(tau.mean()))
    assert step.tau_quantiles is not None
    assert step.tau_quantiles[2] == pytest.approx(float(tau.median()))
    assert list(step.tau_quantiles) == sorted(step.tau_quantiles)
    assert step.loss is not None
    assert step.loss > 0
    assert torch.allclose(logits, raw / tau.mean())
