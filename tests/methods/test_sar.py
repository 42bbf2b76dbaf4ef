"""SAR against formulas written out here, and each trap of the authors' code."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import Counting, same, snapshot, step_of

SURE, LESS_SURE, UNSURE = [9.0, 0.0, 0.0, 0.0], [3.5, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]


class Sharp(by.Learner):
    """Selection, the step uphill, the step, and the moving average with its reset."""

    below, resets = 0.2, 0

    def step(self, x: Tensor) -> Tensor:
        self.watch()
        z = self.forward(x)
        h, scale = by.entropy(z), math.log(by.CLASSES)
        first, here = h.detach() < 0.6 * scale, dict(self.weights)
        self.used = 0
        if not first.any():
            return z.detach()
        loss = h[first].sum() / first.sum()
        g, self.lost = self.slope(loss), float(loss.detach())
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in g.values()))
        for name in self.learned:
            self.weights[name] = (here[name] + 0.05 * g[name] / norm).detach().requires_grad_()
        h = by.entropy(self.forward(x, momentum=0.0))
        both = first & (h.detach() < 0.6 * scale)
        if not both.any():
            self.weights = here
            return z.detach()
        self.used = int(both.sum())
        loss = h[both].sum() / both.sum()
        there = self.slope(loss)
        for name in self.learned:
            self.weights[name] = here[name].detach() + self.descent.move(name, there[name])
        now, before = loss.detach(), self.memory.get("average")
        self.memory["average"] = now if before is None else 0.9 * before + 0.1 * now
        if self.memory["average"] < self.below * scale / math.log(1000):
            self.memory, self.descent, self.resets = {}, self.begin(), self.resets + 1
            self.weights.update({name: self.source[name].clone() for name in self.learned})
        return z.detach()


@pytest.mark.parametrize("optimizer", by.OPTIMIZERS)
def test_a_stream_with_resets_is_exact(optimizer: str) -> None:
    model, expected = by.flat_model(), Sharp(by.flat_model(), optimizer, 0.05)
    expected.below = 2.2
    options: dict[str, Any] = {"optimizer": optimizer, "reset_below": expected.below, "learning_rate": 0.05}
    adapter = eq.create("sar", model, margin=0.6, **options)
    seen = []
    for x in by.stream(12, rows=9):
        assert by.close(adapter(x), expected.step(x))
        by.assert_alike(adapter, expected)
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
