"""TENT against formulas written out here and in `byhand`."""

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import drifted, make, step_of


class Tent(by.Learner):
    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        return by.entropy(z).sum() / len(z), len(z)


def test_the_answer_is_of_before_the_update() -> None:
    x = by.stream(1)[0]
    fast, still = (eq.create("tent", by.flat_model(), learning_rate=rate) for rate in (0.5, 0.0))
    assert torch.equal(fast(x), still(x))
    assert not by.close(fast(x), still(x), 1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_of_two_steps_the_last_forward_answers(optimizer: str) -> None:
    model = by.flat_model()
    adapter = eq.create("tent", model, optimizer=optimizer, learning_rate=0.05, steps=2)
    expected = Tent(model, optimizer, 0.05)
    for x in by.stream(2):
        first = expected.step(x)
        second = expected.step(x)
        answer = adapter(x)
        assert by.close(answer, second)
        assert not by.close(answer, first, 1e-4)
    by.assert_alike(adapter, expected)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_running_statistics_follow_at_their_own_pace(momentum: float) -> None:
    model = by.conv_model()
    adapter, expected = (
        eq.create("tent", model, norm_momentum=momentum),
        Tent(model, "adam", 1e-3, momentum=momentum),
    )
    for x in by.stream(2, like=model):
        adapter(x)
        expected.step(x)
    by.assert_alike(adapter, expected)


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


def test_a_saturated_answer_does_not_keep_the_others_from_learning() -> None:
    # Its probabilities underflow to 0, where p log p has no derivative; p times the log-softmax has one: 0.
    x = torch.tensor([[2000.0, 0.0, 0.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
    adapter = eq.create("tent", by.Scale(3), parameters="all", optimizer="sgd", learning_rate=0.1)
    adapter(x)
    p = by.softmax(x[1:])
    gradient = -p * (p.log() + by.entropy(x[1:])) * x[1:]
    assert by.close(adapter.student.get_parameter("weight"), 1 - 0.1 * gradient.sum(0) / 2)


class TestLoneSamples:
    def test_are_normalised_in_a_window_and_learned_from_once_a_window(self) -> None:
        model = by.flat_model()
        adapter = eq.create("tent", model, window=3, learning_rate=0.05)
        expected = Tent(model, "adam", 0.05)
        samples = by.stream(8, rows=1)
        for place, x in enumerate(samples):
            window = torch.cat(samples[max(0, place - 2) : place + 1])
            due = place % 3 == 2
            before = {name: w.detach().clone() for name, w in expected.weights.items()}
            if place == 0:
                z = expected.predict(x)
            else:
                z = expected.step(window) if due else expected.forward(window)
            assert by.close(adapter(x), z[-1:]), place
            by.assert_alike(adapter, expected)
            assert by.close(expected.weights["norm.bias"], before["norm.bias"], 1e-4) is not due
            step = step_of(adapter)
            assert (step.samples, step.used, step.updated) == (1, 3 if due else 0, due)
            assert bool(step.reason) is not due

    def test_the_first_leaves_the_running_statistics(self) -> None:
        model = by.conv_model()
        adapter = eq.create("tent", model, window=3)
        (x,) = by.stream(1, rows=1, like=model)
        with torch.no_grad():
            assert by.close(adapter(x), model(x))
        by.assert_alike(adapter, by.ByHand(model))

    def test_batches_between_them_learn_at_once_and_stay_out_of_the_window(self) -> None:
        model = by.flat_model()
        adapter = eq.create("tent", model, window=2, optimizer="sgd", learning_rate=0.05)
        expected = Tent(model, "sgd", 0.05)
        (batch,) = by.stream(1, seed=8)
        left, right = by.stream(2, rows=1)
        assert by.close(adapter(left), expected.predict(left))
        assert by.close(adapter(batch), expected.step(batch))
        assert by.close(adapter(right), expected.step(torch.cat([left, right]))[-1:])
        by.assert_alike(adapter, expected)

    def test_learn_by_themselves_without_batch_norm(self) -> None:
        model = by.layer_norm_model()
        adapter = eq.create("tent", model, learning_rate=0.05)
        expected = Tent(model, "adam", 0.05)
        for x in by.stream(4, rows=1):
            assert by.close(adapter(x), expected.step(x))
            assert (step_of(adapter).used, step_of(adapter).updated) == (1, True)
        by.assert_alike(adapter, expected)

    def test_of_another_shape_start_a_window_of_their_own(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), Pooled(), nn.Linear(2, 3)).eval()
        adapter = eq.create("tent", model, window=3)
        used = []
        for seed, size in enumerate((5, 5, 6, 6, 6)):
            adapter(torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(seed)))
            used.append(step_of(adapter).used)
        assert used == [0, 0, 0, 0, 3]


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))
