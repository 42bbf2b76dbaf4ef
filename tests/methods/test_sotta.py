"""SoTTA against formulas written out here: the answer, the memory, the sharpness-aware step, Adam."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.sotta import default_confidence
from tests.support import byhand as by
from tests.support.list_memory import ListMemory
from tests.support.models import WithLogits, drifted, make, same, snapshot, step_of

EPSILON = 1e-5  # nn.BatchNorm1d's
NORMS = ("1.weight", "1.bias", "4.weight", "4.bias")


def small_model(seed: int = 0) -> nn.Sequential:
    """Linear, batch norm and ReLU twice, linear; its answers are of all degrees of certainty."""
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(6, 4)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
            if "running_var" in name:
                tensor.copy_(tensor**2 + 0.5)
    return model.eval()


def stream(sizes: list[int], seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(rows, 6, generator=generator, dtype=torch.float64) + 1 for rows in sizes]


class ByHand:
    """SoTTA on `small_model` as plain tensors and sums."""

    def __init__(self, model: nn.Module, confidence: float, **options: Any) -> None:
        self.w = {n: t.clone() for n, t in model.state_dict().items() if t.is_floating_point()}
        self.confidence, self.every = confidence, options.get("every", 64)
        self.rho, self.steps = options.get("rho", 0.05), options.get("steps", 1)
        self.memory = ListMemory(options.get("capacity", 64), 4, options.get("seed", 0))
        self.offered, self.count, self.loss, self.used = 0, 0, math.nan, 0
        self.descent = by.Adam(1e-3)

    def network(self, w: dict[str, Tensor], x: Tensor, *, own: bool) -> Tensor:
        """Logits, normalised by the running statistics or by their own, which the running ones follow."""
        h = x @ w["0.weight"].T + w["0.bias"]
        for norm, linear in (("1", "3"), ("4", "6")):
            mean, var = w[f"{norm}.running_mean"], w[f"{norm}.running_var"]
            if own:
                mean, var = h.mean(0), ((h - h.mean(0)) ** 2).mean(0)
                for name, value in (("mean", mean), ("var", var * len(x) / (len(x) - 1))):
                    old = self.w[f"{norm}.running_{name}"]
                    self.w[f"{norm}.running_{name}"] = 0.8 * old + 0.2 * value.detach()
            h = (h - mean) / (var + EPSILON).sqrt() * w[f"{norm}.weight"] + w[f"{norm}.bias"]
            h = h.clamp(min=0) @ w[f"{linear}.weight"].T + w[f"{linear}.bias"]
        return h

    def slope(self, values: dict[str, Tensor], x: Tensor) -> tuple[float, dict[str, Tensor]]:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        z = self.network({**self.w, **leaves}, x, own=len(x) > 1)
        p = z.exp() / z.exp().sum(1, keepdim=True)
        loss = -(p * (p + 1e-6).log()).sum() / len(x)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return float(loss.detach()), dict(zip(leaves, gradients, strict=True))

    def update(self) -> None:
        x = torch.stack([sample for _, sample in self.memory.slots])
        for _ in range(self.steps):
            here = {name: self.w[name] for name in NORMS}
            self.loss, g = self.slope(here, x)
            norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in g.values()))
            _, g = self.slope({n: here[n] + self.rho * g[n] / (norm + 1e-12) for n in NORMS}, x)
            self.count, self.used = self.count + 1, len(x)
            self.w |= {n: here[n] + self.descent.move(n, g[n]) for n in NORMS}

    def step(self, x: Tensor) -> Tensor:
        z = self.network(self.w, x, own=False)
        p = z.exp() / z.exp().sum(1, keepdim=True)
        for sample, chances in zip(x, p, strict=True):
            sure = float(chances.max()) >= self.confidence
            self.memory.offer(int(chances.argmax()), sample, sure=sure)
            self.offered += 1
            if self.offered % self.every == 0 and self.memory.slots:
                self.update()
        return z


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ([64, 64, 64], {}),
        ([4] * 8, {"every": 4, "capacity": 4}),
        ([10] * 4, {"every": 4, "capacity": 5, "seed": 7}),  # two or three updates within a batch
        ([1, 5, 30, 2, 1, 17], {"every": 3, "capacity": 9, "rho": 0.5}),
        ([7] * 5, {"every": 10, "capacity": 64, "steps": 3}),
        ([1] * 12, {"every": 1, "capacity": 3}),  # the first memories are of one sample
    ],
)
def test_a_stream_is_exact(sizes: list[int], options: dict[str, Any]) -> None:
    model = small_model()
    adapter = eq.create("sotta", model, confidence=0.6, **options)
    expected = ByHand(model, 0.6, **options)
    for x in stream(sizes):
        assert torch.allclose(adapter(x), expected.step(x), rtol=1e-8, atol=1e-10)
        if step_of(adapter).updated:
            assert step_of(adapter).loss == pytest.approx(expected.loss, rel=1e-8)
            assert step_of(adapter).used == expected.used
    assert expected.count >= 3
    for name, value in expected.w.items():
        assert torch.allclose(adapter.student.state_dict()[name], value, rtol=1e-8, atol=1e-10), name
        moves = name in NORMS or "running" in name
        assert torch.equal(value, model.state_dict()[name]) != moves, name
    x = stream([5], seed=8)[0]
    assert torch.allclose(adapter.predict(x), expected.network(expected.w, x, own=False), rtol=1e-8)


def memory_of(adapter: eq.Adapter) -> list[tuple[int, list[float]]]:
    """The memory as classes and samples, free slots left out."""
    state = adapter.state_dict()
    pairs = zip(state["sotta.memory.classes"].tolist(), state["sotta.memory.samples.0"].tolist(), strict=True)
    return [(held, sample) for held, sample in pairs if held >= 0]


def test_each_update_within_a_batch_sees_the_memory_as_it_stood_then() -> None:
    model = small_model()
    adapter = eq.create("sotta", model, confidence=0.0, every=4)
    rows: list[int] = []
    adapter.student.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    adapter(stream([10])[0])
    assert rows == [10, 4, 4, 8, 8]  # the answer, and two forwards of the memory at each update
    assert len(memory_of(adapter)) == 10
    adapter(stream([2])[0])
    assert rows[5:] == [2, 12, 12]


def test_batches_of_one_learn_as_batches_without_an_update_inside() -> None:
    samples = stream([24])[0]
    single, together = (eq.create("sotta", small_model(), confidence=0.5, every=6) for _ in range(2))
    left = torch.cat([single(x) for x in samples.split(1)])
    right = torch.cat([together(x) for x in samples.split([2, 4, 3, 3, 6, 5, 1])])
    assert torch.allclose(left, right, rtol=1e-9, atol=1e-12)
    assert memory_of(single) == memory_of(together)
    assert not torch.allclose(single.predict(samples), small_model()(samples), rtol=1e-4)


def test_the_first_window_is_answered_by_the_source_model() -> None:
    model = small_model()
    adapter = eq.create("sotta", model, confidence=0.5)
    for x in (*stream([30, 33]), stream([1], seed=9)[0]):
        with torch.no_grad():
            assert torch.equal(adapter(x), model(x))
    x = stream([5])[0]
    assert not torch.allclose(adapter(x), model(x), rtol=1e-4)


def conv_sotta(rows: int) -> tuple[nn.Sequential, eq.Adapter]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).eval()
    return model, eq.create("sotta", model, confidence=0.0, every=rows)


def test_a_memory_of_one_sample_has_no_statistics_to_move_towards() -> None:
    model, adapter = conv_sotta(1)
    adapter(drifted(1))
    assert step_of(adapter).updated
    for name in ("mean", "var"):
        assert torch.equal(
            adapter.student.get_buffer(f"1.running_{name}"), model.get_buffer(f"1.running_{name}")
        )


def test_the_first_batch_norm_moves_by_36_percent_towards_the_memory() -> None:
    (model, adapter), x = conv_sotta(4), drifted(4)
    adapter(x)
    own = model[0](x).detach().transpose(0, 1).flatten(1)
    expected = {"mean": 0.36 * own.mean(1), "var": 0.64 + 0.36 * own.var(1)}
    for name, value in expected.items():
        came = adapter.student.get_buffer(f"1.running_{name}")
        assert torch.allclose(came, value, rtol=1e-4, atol=1e-6), name


def certain_model(classes: int, confidence: float) -> nn.Module:
    """A model as sure of everything as it is told: the head has a bias alone."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, classes)).double().eval()
    nn.init.zeros_(model.get_parameter("1.weight"))
    bias = nn.init.zeros_(model.get_parameter("1.bias"))
    with torch.no_grad():
        bias[0] = math.log(confidence * (classes - 1) / (1 - confidence))
    return model


@pytest.mark.parametrize(
    ("classes", "limit"),
    [(2, 0.99), (10, 0.99), (100, 0.66), (200, 0.33 * (4 - math.log10(200))), (1000, 0.33), (5000, 0.33)],
)
def test_the_default_confidence_is_the_authors_and_on_a_line_between(classes: int, limit: float) -> None:
    assert default_confidence(classes) == pytest.approx(limit)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    for off, used in ((-0.001, 0), (0.001, 4)):
        adapter = eq.create("sotta", certain_model(classes, limit + off), every=4)
        adapter(x)
        assert step_of(adapter).used == used


def test_a_confidence_of_exactly_the_limit_enters_and_a_memory_without_slope_moves_nothing() -> None:
    model = certain_model(4, 0.25)
    adapter = eq.create("sotta", model, confidence=0.25, every=2)
    adapter(torch.eye(3).double()[:2])
    assert len(memory_of(adapter)) == 2
    for name, parameter in adapter.student.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))


def test_an_empty_memory_is_the_reason_for_no_update() -> None:
    adapter = eq.create("sotta", small_model(), confidence=1.0, every=5)
    before = snapshot(adapter)
    adapter(stream([3])[0])
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "2 samples until the next update")
    adapter(stream([2])[0])
    step = step_of(adapter)
    assert (step.updated, step.used, step.loss) == (False, 0, None)
    assert step_of(adapter).reason == "the memory is empty: no sample has entered it"
    after = snapshot(adapter)
    assert same(before, {name: after[name] for name in before})
    # Each sample draws its numbers, sure or not.
    assert set(after) - set(before) == {"sotta.random", "sotta.memory.samples.0"}


def test_the_memory_is_never_emptied() -> None:
    adapter = eq.create("sotta", small_model(), confidence=0.0, every=4, capacity=12)
    samples = stream([16])[0]
    for count, x in zip((4, 8, 12, 12), samples.split(4), strict=True):
        adapter(x)
        assert step_of(adapter).used == len(memory_of(adapter)) == count
    assert all(sample in samples.tolist() for _, sample in memory_of(adapter))


@pytest.mark.parametrize("odd", [torch.zeros(3, 3, 7, 7), torch.zeros(3, 3, 6, 6).double()])
def test_inputs_of_another_kind_are_refused_and_change_nothing(odd: Tensor) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(6), make("batch_norm")[0]).eval()
    adapter = eq.create("sotta", model, confidence=0.0, every=4)
    adapter(drifted(6))
    before = snapshot(adapter)
    with pytest.raises(
        eq.errors.BatchError, match=r"expected input 0 as torch.float32 \(3, 6, 6\) a sample, got"
    ):
        adapter(odd)
    assert same(before, snapshot(adapter))
    adapter(drifted(6, seed=1))
    assert not same(before, snapshot(adapter))


def test_inputs_by_keyword_are_remembered_by_keyword() -> None:
    inner = make("batch_norm")[0]
    positional, keyword = (
        eq.create("sotta", model, confidence=0.3, every=4, capacity=6) for model in (inner, WithLogits(inner))
    )
    for seed in range(4):
        x = drifted(7, seed)
        assert torch.equal(positional(x), keyword(pixel_values=x / 2, scale=2.0).logits)
    state, expected = keyword.state_dict(), positional.state_dict()
    assert torch.equal(2 * state["sotta.memory.samples.pixel_values"], expected["sotta.memory.samples.0"])
    assert torch.equal(state["sotta.model.inner.1.weight"], expected["sotta.model.1.weight"])


class Bytes(nn.Module):
    """Takes pixels as bytes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x.float() / 64 - 2)
        return logits


def test_bytes_are_remembered_as_bytes() -> None:
    inner = make("batch_norm")[0]
    plain, raw = (eq.create("sotta", m, confidence=0.3, every=4, capacity=6) for m in (inner, Bytes(inner)))
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 256, (7, 3, 6, 6), generator=generator, dtype=torch.uint8)
        assert torch.equal(plain(x.float() / 64 - 2), raw(x))
    assert raw.state_dict()["sotta.memory.samples.0"].dtype == torch.uint8
