"""CMF against formulas written out here, in `test_roid` and in `byhand`."""

import pytest
import torch
from torch import nn

from tests.methods.test_roid import Robust, adapter_of, batches
from tests.support.byhand import assert_alike, close, conv_model


class Filtered(Robust):
    """CMF's steps."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(model)
        self.hidden = {name: self.hand.source[name] for name in self.hand.learned}
        self.s = 0.0
        self.noise = 0.005 * 6 / 38400  # of three channels a weight and a bias

    def filter(self) -> None:
        q, r = self.noise, 1 - self.noise
        self.s = 0.99**2 * self.s + q
        beta = max(r / (self.s + r), 0.89)
        beta = 1.0 if beta > 0.9999 else beta
        self.s *= beta
        for name in self.hand.learned:
            theta = self.hand.weights[name]
            phi = 0.99 * self.hidden[name] + 0.01 * self.hand.source[name]
            self.hidden[name] = beta * phi + (1 - beta) * theta
            self.hand.weights[name] = 0.99 * theta + 0.01 * self.hidden[name]


def test_weights_and_answers_are_those_of_the_formulas() -> None:
    """Three channels have so few weights that β is 1: the hidden weights stay the source's."""
    model = conv_model()
    adapter, hand = adapter_of("cmf", model), Filtered(model)
    for x in batches(model):
        assert close(adapter(x), hand.step(x), 1e-7)
        assert_alike(adapter, hand.hand, 1e-7)


@pytest.mark.parametrize("noise", [0.02, 0.5, 30.0])
def test_the_filter_follows_where_many_weights_learn(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more weights β is below .9999 from the first step, and at last .89, also where q > 1."""
    monkeypatch.setattr("equipoise.methods.cmf._NOISE", noise * 38400 / 6)
    model = conv_model()
    adapter, hand = adapter_of("cmf", model), Filtered(model)
    hand.noise = noise
    for x in batches(model):
        adapter(x)
        hand.step(x)
        assert_alike(adapter, hand.hand, 1e-7)
        assert close(adapter.memory["variance"], torch.tensor(hand.s, dtype=torch.float64), 1e-7)
        for name, weight in hand.hidden.items():
            assert close(adapter.memory[f"hidden.{name}"], weight, 1e-7)
