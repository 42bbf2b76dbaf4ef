"""SAR against formulas written out here, and each trap of the authors' code."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import Counting, same, snapshot, step_of

SURE, LESS_SURE, UNSURE = [9.0, 0.0, 0.0, 0.0], [3.5, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]


class Oracle:
    """SAR on a model by hand: selection, the step uphill, the step, and the moving average."""

    def __init__(
        self, model: nn.Sequential, margin: float, begin: Callable[[], by.Descent], below: float = 0.2
    ) -> None:
        self.network, self.begin, self.descent = by.ByHand(model), begin, begin()
        self.limit = margin * math.log(by.CLASSES)
        self.threshold = below * math.log(by.CLASSES) / math.log(1000)
        self.average: float | None = None
        self.kept: tuple[int, int] = (0, 0)
        self.resets = 0

    def step(self, x: Tensor) -> Tensor:
        """The logits of the first forward."""
        network = self.network
        network.watch()
        z = network.forward(x)
        h = by.entropy(z)
        first = h.detach() < self.limit
        self.kept = (int(first.sum()), 0)
        if not first.any():
            return z.detach()
        g = network.slope(h[first].sum() / first.sum())
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in g.values()))
        here = dict(network.weights)
        for name in network.learned:
            network.weights[name] = (here[name] + 0.05 * g[name] / norm).detach().requires_grad_()
        h = by.entropy(network.forward(x, momentum=0.0))
        both = first & (h.detach() < self.limit)
        self.kept = (int(first.sum()), int(both.sum()))
        if not both.any():
            network.weights = here
            return z.detach()
        loss = h[both].sum() / both.sum()
        there = network.slope(loss)
        for name in network.learned:
            network.weights[name] = here[name].detach() + self.descent.move(name, there[name])
        now = float(loss.detach())
        self.average = now if self.average is None else 0.9 * self.average + 0.1 * now
        if self.average < self.threshold:
            self.average, self.resets = None, self.resets + 1
            network.weights.update({name: network.source[name].clone() for name in network.learned})
            self.descent = self.begin()
        return z.detach()


@pytest.mark.parametrize("build", [by.flat_model, by.conv_model, by.layer_norm_model])
@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({}, lambda: by.Momentum(2.5e-4)),
        ({"optimizer": "adam"}, lambda: by.Adam(1e-3)),
        ({"learning_rate": 0.02}, lambda: by.Momentum(0.02)),
    ],
)
def test_batches_are_exact(build: Any, options: dict[str, Any], begin: Any) -> None:
    model = build()
    adapter = eq.create("sar", model, margin=0.6, **options)
    expected = Oracle(model, 0.6, begin)
    for x in by.stream(4, rows=9, like=model):
        assert by.close(adapter(x), expected.step(x))
        assert (step_of(adapter).updated, step_of(adapter).used) == (True, expected.kept[1])
        assert 0 < expected.kept[1] < 9
        by.assert_alike(adapter, expected.network)
        assert expected.average is not None
        assert float(adapter.memory["average"]) == pytest.approx(expected.average)
    assert expected.resets == 0


@pytest.mark.parametrize("begin", [by.Momentum, by.Adam])
def test_a_stream_with_resets_is_exact(begin: Any) -> None:
    model, below = by.flat_model(), 2.2
    optimizer = "adam" if begin is by.Adam else "sgd"
    options: dict[str, Any] = {"optimizer": optimizer, "reset_below": below, "learning_rate": 0.05}
    adapter = eq.create("sar", model, margin=0.6, **options)
    expected = Oracle(model, 0.6, lambda: begin(0.05), below)
    seen = []
    for x in by.stream(12, rows=9):
        assert by.close(adapter(x), expected.step(x))
        by.assert_alike(adapter, expected.network)
        seen.append("collapsed" in step_of(adapter).reason)
    assert seen.count(True) == expected.resets
    assert 0 < expected.resets < 12


def scaled(**options: Any) -> eq.Adapter:
    return eq.create("sar", by.Scale(4), parameters="all", learning_rate=0.1, **options)


def rows(*each: list[float]) -> Tensor:
    return torch.tensor(each, dtype=torch.float64)


def test_a_reset_happens_once_and_the_average_starts_anew() -> None:
    adapter = scaled()
    fresh = snapshot(adapter)
    adapter(rows(SURE, SURE))  # an entropy of .004 nats
    assert "collapsed" in step_of(adapter).reason
    assert not step_of(adapter).updated
    assert same(fresh, snapshot(adapter))  # weights, momentum and average
    adapter(rows(LESS_SURE, LESS_SURE))  # of .35 nats: .9 of the old average and .1 of this would be below
    assert step_of(adapter).updated
    assert float(adapter.memory["average"]) > 0.3


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_the_threshold_scales_with_the_classes(classes: int) -> None:
    threshold = 0.2 * math.log(classes) / math.log(1000)
    for factor, collapses in ((0.97, True), (1.03, False)):
        low, high = 0.0, 40.0
        for _ in range(100):
            middle = (low + high) / 2
            z = torch.tensor([[middle] + [0.0] * (classes - 1)], dtype=torch.float64)
            low, high = (middle, high) if float(by.entropy(z)) > factor * threshold else (low, middle)
        adapter = eq.create("sar", by.Scale(classes), parameters="all", rho=0.0)
        adapter(z)
        assert ("collapsed" in step_of(adapter).reason) == collapses


def test_without_a_threshold_nothing_is_reset() -> None:
    adapter = scaled(reset_below=0.0)
    adapter(rows(SURE, SURE))
    assert step_of(adapter).updated


def test_an_empty_first_selection_takes_no_step_and_no_second_forward() -> None:
    model = Counting(by.Scale(4))
    adapter = eq.create("sar", model, parameters="all", learning_rate=0.1)
    adapter(rows(LESS_SURE, UNSURE))
    before, Counting.forwards = snapshot(adapter), 0
    assert float(before["sar.memory.optimizer.velocity.inner.weight"].abs().sum()) > 0
    adapter(rows(UNSURE, UNSURE))
    assert Counting.forwards == 1
    assert same(before, snapshot(adapter))
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "none of 2 samples is reliable")


def test_an_empty_second_selection_takes_no_step() -> None:
    adapter = scaled(rho=0.5)  # at half the weight, only the sure sample is reliable
    adapter(rows(SURE, LESS_SURE))
    before = snapshot(adapter)
    assert float(before["sar.memory.optimizer.velocity.weight"].abs().sum()) > 0
    adapter(rows(LESS_SURE, LESS_SURE))
    assert same(before, snapshot(adapter))
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "none of 2 samples is reliable")


def test_a_sample_left_out_has_no_part_in_the_step() -> None:
    alone, together = scaled(), scaled()
    alone(rows(LESS_SURE, LESS_SURE))
    together(rows(UNSURE, LESS_SURE, LESS_SURE, UNSURE))
    assert by.close(alone.student.get_parameter("weight"), together.student.get_parameter("weight"))
