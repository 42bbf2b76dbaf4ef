"""ROID against formulas written out here and in `byhand`, and the faults that CMF shares."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import StateError
from equipoise.methods import roid as losses
from equipoise.methods.parts.views import WEAK_DRAWS, weak_views
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot, step_of

RATE = 0.02


class Robust:
    """ROID's steps on one of the models of `byhand`."""

    def __init__(self, model: nn.Sequential) -> None:
        self.hand, self.descent = by.ByHand(model), by.Adam(RATE)
        self.average = [1 / by.CLASSES] * by.CLASSES
        self.random = torch.Generator().manual_seed(0)
        self.used: list[int] = []

    def step(self, x: Tensor) -> Tensor:
        self.hand.watch()
        z = self.hand.forward(x)
        views = weak_views(x, torch.rand(len(x), WEAK_DRAWS, generator=self.random))
        p, q = by.softmax(z), by.softmax(self.hand.forward(views, momentum=0.0))
        weights = self.weights(p.detach(), by.entropy(z).detach())
        loss = z.new_zeros(())
        for i, weight in enumerate(weights):
            a, b = p[i], q[i]
            clipped = a.clamp(max=0.99)
            ratio = -(clipped * (clipped / (1 - clipped) + 1e-5).log()).sum()
            both = -0.5 * (b * a.log()).sum() - 0.5 * (a * b.log()).sum()
            loss = loss + weight * (ratio + both) / len(x)
        self.used.append(sum(weight > 0 for weight in weights))
        self.hand.descend(loss, self.descent)
        self.average = [
            0.9 * old + 0.1 * float(p[:, c].detach().sum()) / len(x) for c, old in enumerate(self.average)
        ]
        self.filter()
        return z

    def weights(self, p: Tensor, h: Tensor) -> list[float]:
        norm = math.sqrt(sum(a * a for a in self.average))
        apart = []
        for row in p.tolist():
            along = sum(a * b for a, b in zip(self.average, row, strict=True))
            apart.append(1 - along / (norm * math.sqrt(sum(b * b for b in row))))
        sure = [-one for one in h.tolist()]
        apart, sure = stretched(apart), stretched(sure)
        mean = sum(apart) / len(apart)
        return [math.exp(3 * d * c) if d >= mean else 0.0 for d, c in zip(apart, sure, strict=True)]

    def filter(self) -> None:
        for name in self.hand.learned:
            self.hand.weights[name] = 0.99 * self.hand.weights[name] + 0.01 * self.hand.source[name]


def stretched(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def adapter_of(method: str, model: nn.Module, **options: Any) -> eq.Adapter:
    return eq.create(method, model, **{"learning_rate": RATE, **options})


def batches(model: nn.Sequential) -> list[Tensor]:
    """Of different sizes: the loss is divided by that of the batch."""
    first, second, third = by.stream(3, rows=9, like=model)
    return [first, second[:5], third]


def test_weights_and_answers_are_those_of_the_formulas() -> None:
    model = by.conv_model()
    adapter, hand = adapter_of("roid", model), Robust(model)
    for x in batches(model):
        assert by.close(adapter(x), hand.step(x), 1e-7)
        by.assert_alike(adapter, hand.hand, 1e-7)
        assert by.close(adapter.memory["average"], torch.tensor(hand.average, dtype=torch.float64), 1e-7)
        assert step_of(adapter).used == hand.used[-1]
    assert 0 < hand.used[0] < 9


def test_the_prior_is_added_and_not_multiplied() -> None:
    """A class that the batch has often gains, whatever the signs of the logits."""
    for shift in (-20.0, 0.0, 20.0):
        z = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.5, 0.4, 0.0]]) + shift
        p = z.softmax(1)
        prior = p.sum(0) / 3
        s = (1 / 3) / prior.max()
        expected = z + ((prior + s) / (1 + 3 * s)).log()
        came = losses.with_prior(z)
        assert torch.allclose(came, expected)
        assert bool((came.softmax(1)[:, 0] > p[:, 0]).all())


def test_a_row_that_is_not_finite_has_no_part_in_the_prior() -> None:
    z = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [torch.nan, 0.0, 0.0]])
    came, expected = losses.with_prior(z), losses.with_prior(z[:2])
    assert came[:2].isfinite().all() and came[2].isnan().any()
    assert (came[:2].argmax(1) == expected.argmax(1)).all()
    assert losses.with_prior(z[2:]).isnan().any()


def test_a_uniform_prior_changes_no_probability() -> None:
    z = torch.eye(4) * 3
    assert torch.allclose(losses.with_prior(z).softmax(1), z.softmax(1), atol=1e-6)


@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_the_correction_is_an_option_that_changes_answers_only(method: str) -> None:
    model, _ = make()
    plain, corrected = adapter_of(method, model), adapter_of(method, model, prior_correction=True)
    for seed in range(2):
        expected = losses.with_prior(plain(drifted(8, seed)))
        assert torch.allclose(corrected(drifted(8, seed)), expected, atol=1e-6)
    assert same(snapshot(plain), snapshot(corrected))


def on_own_statistics(student: nn.Module, x: Tensor) -> Tensor:
    """The logits with batch norms that use the statistics of the samples, if these are several."""
    network = copy.deepcopy(student)
    for layer in network.modules():
        layer.train(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and len(x) > 1)
    logits: Tensor = network(x)
    return logits


@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_every_lone_sample_is_corrected_by_the_prior_of_its_window(method: str) -> None:
    model, _ = make()
    plain, corrected = (
        adapter_of(method, model, window=4, prior_correction=wanted) for wanted in (False, True)
    )
    samples = [drifted(1, seed) for seed in range(9)]
    for last, x in enumerate(samples, start=1):
        window = torch.cat(samples[max(0, last - 4) : last])
        logits = on_own_statistics(corrected.student, window)
        expected = losses.with_prior(logits)[-1:]
        assert torch.allclose(plain(x), logits[-1:], atol=1e-5)
        assert torch.allclose(corrected(x), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["batch_norm", "layer_norm"])
@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_a_single_sample_has_the_weight_one(method: str, kind: str) -> None:
    weights, kept = losses.sample_weights(torch.tensor([[1.0, 2.0, 0.5]]), torch.full((3,), 1 / 3))
    assert (weights.tolist(), kept.tolist()) == ([1.0], [True])
    adapter = adapter_of(method, make(kind)[0], window=2)
    for seed in range(3):
        assert bool(adapter(drifted(1, seed)).isfinite().all())
    assert all(bool(tensor.isfinite().all()) for tensor in snapshot(adapter).values())
    assert not same(snapshot(adapter), snapshot(adapter_of(method, make(kind)[0], window=2)))


@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_a_step_that_is_not_finite_moves_nothing(method: str) -> None:
    model, _ = make("layer_norm")
    adapter = adapter_of(method, model)
    adapter(drifted(8))
    before = snapshot(adapter)
    adapter(drifted(8) * 1e38)
    assert not step_of(adapter).updated
    assert same(before, snapshot(adapter))


def test_an_average_of_another_number_of_classes_is_refused() -> None:
    model, source = make()
    adapter = eq.create("roid", model, source)
    adapter(drifted(8))
    state = adapter.state_dict()
    state["roid.memory.average"] = torch.full((3,), 1 / 3)
    with pytest.raises(StateError, match=r"average: expected a tensor of \(classes=5\), got \(3,\)"):
        adapter.load_state_dict(state)
