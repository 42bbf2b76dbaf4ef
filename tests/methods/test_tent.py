"""TENT against formulas written out here and in `byhand`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.byhand import (
    Adam,
    ByHand,
    Descent,
    Momentum,
    Scale,
    assert_alike,
    close,
    conv_model,
    entropy,
    flat_model,
    layer_norm_model,
    softmax,
    stream,
)
from tests.support.models import drifted, make, same, snapshot


def learn(expected: ByHand, x: Tensor, descent: Descent, momentum: float = 0.1) -> Tensor:
    """A step down the mean entropy; returns the logits of before it."""
    expected.watch()
    z = expected.forward(x, momentum)
    expected.descend(entropy(z).sum() / len(z), descent)
    return z.detach()


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "BatchNorm1d": flat_model,
    "BatchNorm2d": conv_model,
    "LayerNorm": layer_norm_model,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("rate", [None, 0.05])
def test_three_batches_are_exact(kind: str, optimizer: str, rate: float | None) -> None:
    model = MODELS[kind]()
    adapter = eq.create("tent", model, optimizer=optimizer, learning_rate=rate)
    descent: Descent = Adam(rate or 1e-3) if optimizer == "adam" else Momentum(rate or 2.5e-4)
    expected = ByHand(model)
    for x in stream(3, like=model):
        assert close(adapter(x), learn(expected, x, descent))
    assert_alike(adapter, expected)
    assert not close(expected.weights["norm.weight"], expected.source["norm.weight"], 1e-5)
    x = stream(1, rows=5, like=model, seed=4)[0]
    assert close(adapter.predict(x), expected.predict(x))


def test_adam_is_the_default() -> None:
    adapter, expected, descent = eq.create("tent", flat_model()), ByHand(flat_model()), Adam(1e-3)
    for x in stream(2):
        learn(expected, x, descent)
        adapter(x)
    assert_alike(adapter, expected)
    assert (adapter.options["optimizer"], adapter.options["learning_rate"]) == ("adam", 1e-3)
    assert eq.create("tent", flat_model(), optimizer="sgd").options["learning_rate"] == 2.5e-4


def test_the_answer_is_of_before_the_update() -> None:
    x = stream(1)[0]
    fast, still = (eq.create("tent", flat_model(), learning_rate=rate) for rate in (0.5, 0.0))
    assert torch.equal(fast(x), still(x))
    assert not close(fast(x), still(x), 1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_of_two_steps_the_last_forward_answers(optimizer: str) -> None:
    model = flat_model()
    adapter = eq.create("tent", model, optimizer=optimizer, learning_rate=0.05, steps=2)
    descent: Descent = Adam(0.05) if optimizer == "adam" else Momentum(0.05)
    expected = ByHand(model)
    for x in stream(2):
        first = learn(expected, x, descent)
        second = learn(expected, x, descent)
        answer = adapter(x)
        assert close(answer, second)
        assert not close(answer, first, 1e-4)
    assert_alike(adapter, expected)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_running_statistics_follow_at_their_own_pace(momentum: float) -> None:
    model = conv_model()
    adapter, expected, descent = eq.create("tent", model, norm_momentum=momentum), ByHand(model), Adam(1e-3)
    for x in stream(2, like=model):
        adapter(x)
        learn(expected, x, descent, momentum)
    assert_alike(adapter, expected)


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        ("batch_norm", {"1.weight", "1.bias", "6.weight", "6.bias"}),
        ("layer_norm", {"2.weight", "2.bias"}),
        ("group_norm", {"1.weight", "1.bias"}),
    ],
)
def test_only_normalisation_weights_move(kind: str, moved: set[str]) -> None:
    model, _ = make(kind)
    adapter = eq.create("tent", model, learning_rate=0.1)
    for seed in range(2):
        adapter(drifted(8, seed))
    changed = {n for n, p in adapter.student.named_parameters() if not torch.equal(p, model.get_parameter(n))}
    assert changed == moved


def test_dropout_stays_off() -> None:
    model, _ = make("batch_norm")
    first, second = (eq.create("tent", model)(drifted(8)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
def test_it_learns_where_gradients_are_off(outside: Callable[[], Any]) -> None:
    inside, plain = (eq.create("tent", flat_model()) for _ in range(2))
    for x in stream(2):
        plain(x)
        with outside():
            inside(x)
    assert same(snapshot(inside), snapshot(plain))


def test_a_reset_forgets_the_optimiser_too() -> None:
    adapter = eq.create("tent", flat_model(), optimizer="sgd", learning_rate=0.1)
    first = [adapter(x) for x in stream(3)]
    adapter.reset()
    again = [adapter(x) for x in stream(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_saturated_answer_does_not_keep_the_others_from_learning() -> None:
    # Its probabilities underflow to 0, where p log p has no derivative; p times the log-softmax has one: 0.
    x = torch.tensor([[2000.0, 0.0, 0.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
    adapter = eq.create("tent", Scale(3), parameters="all", optimizer="sgd", learning_rate=0.1)
    adapter(x)
    p = softmax(x[1:])
    gradient = -p * (p.log() + entropy(x[1:])) * x[1:]
    assert close(adapter.student.get_parameter("weight"), 1 - 0.1 * gradient.sum(0) / 2)


class TestLoneSamples:
    def test_are_normalised_in_a_window_and_learned_from_once_a_window(self) -> None:
        model = flat_model()
        adapter = eq.create("tent", model, window=3, learning_rate=0.05)
        expected, descent = ByHand(model), Adam(0.05)
        samples = stream(8, rows=1)
        for place, x in enumerate(samples):
            window = torch.cat(samples[max(0, place - 2) : place + 1])
            due = place % 3 == 2
            before = {name: w.detach().clone() for name, w in expected.weights.items()}
            if place == 0:
                z = expected.predict(x)
            else:
                z = learn(expected, window, descent) if due else expected.forward(window)
            assert close(adapter(x), z[-1:]), place
            assert_alike(adapter, expected)
            assert close(expected.weights["norm.bias"], before["norm.bias"], 1e-4) is not due
            assert adapter.last is not None
            step = adapter.last
            assert (step.samples, step.used, step.updated) == (1, 3 if due else 0, due)
            assert bool(step.reason) is not due

    def test_the_first_leaves_the_running_statistics(self) -> None:
        model = conv_model()
        adapter = eq.create("tent", model, window=3)
        (x,) = stream(1, rows=1, like=model)
        with torch.no_grad():
            assert close(adapter(x), model(x))
        assert_alike(adapter, ByHand(model))

    def test_batches_between_them_learn_at_once_and_stay_out_of_the_window(self) -> None:
        model = flat_model()
        adapter = eq.create("tent", model, window=2, optimizer="sgd", learning_rate=0.05)
        expected, descent = ByHand(model), Momentum(0.05)
        (batch,) = stream(1, seed=8)
        left, right = stream(2, rows=1)
        assert close(adapter(left), expected.predict(left))
        assert close(adapter(batch), learn(expected, batch, descent))
        assert close(adapter(right), learn(expected, torch.cat([left, right]), descent)[-1:])
        assert_alike(adapter, expected)

    def test_a_reset_empties_the_window(self) -> None:
        adapter = eq.create("tent", flat_model(), window=3)
        samples = stream(5, rows=1)
        first = [adapter(x) for x in samples]
        adapter.reset()
        again = [adapter(x) for x in samples]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

    def test_learn_by_themselves_without_batch_norm(self) -> None:
        model = layer_norm_model()
        adapter = eq.create("tent", model, learning_rate=0.05)
        expected, descent = ByHand(model), Adam(0.05)
        for x in stream(4, rows=1):
            assert close(adapter(x), learn(expected, x, descent))
            assert adapter.last is not None
            assert (adapter.last.used, adapter.last.updated) == (1, True)
        assert_alike(adapter, expected)

    def test_of_another_shape_start_a_window_of_their_own(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), Pooled(), nn.Linear(2, 3)).eval()
        adapter = eq.create("tent", model, window=3)
        used = []
        for seed, size in enumerate((5, 5, 6, 6, 6)):
            adapter(torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(seed)))
            assert adapter.last is not None
            used.append(adapter.last.used)
        assert used == [0, 0, 0, 0, 3]

    def test_in_a_window_of_one_each_learns_alone_by_the_running_statistics(self) -> None:
        adapter = eq.create("tent", flat_model(), window=1)
        for x in stream(2, rows=1):
            adapter(x)
            assert adapter.last is not None
            assert adapter.last.used == 1


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))
