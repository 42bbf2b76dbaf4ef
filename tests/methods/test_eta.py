"""ETA against formulas written out here and in `byhand`."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods.eta import default_epsilon
from tests.support import byhand as by
from tests.support.models import step_of

SURE = [800.0, 0.0]  # probabilities 1 and 0, to the last bit


class Selecting(by.Learner):
    """A step on the samples that are reliable and new, with their moving average."""

    margin, epsilon = 0.6, 0.8

    def objective(self, z: Tensor) -> Tensor:
        return by.entropy(z)

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        h, p, limit = by.entropy(z).detach(), by.softmax(z).detach(), self.margin * math.log(by.CLASSES)
        kept, average = h < limit, self.memory.get("average")
        if average is not None:
            cosine = (p * average).sum(1) / ((p * p).sum(1) * (average * average).sum()).sqrt()
            kept &= cosine.abs() < self.epsilon
        if kept.any():
            mean = p[kept].sum(0) / kept.sum()
            self.memory["average"] = mean if average is None else 0.9 * average + 0.1 * mean
        weight = 1 / (h - limit).exp()
        return (weight * self.objective(z))[kept].sum() / kept.sum(), int(kept.sum())


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("margin", "epsilon"), [(0.4, 0.5), (0.6, 0.7), (0.9, 0.9), (0.4, 0.05), (2.0, 2.0)])
def test_filters_of_any_width_are_exact(margin: float, epsilon: float, steps: int) -> None:
    model = by.layer_norm_model()
    options: dict[str, Any] = {"margin": margin, "epsilon": epsilon, "learning_rate": 0.02, "steps": steps}
    adapter, expected = eq.create("eta", model, **options), Selecting(model, "sgd", 0.02)
    expected.margin, expected.epsilon = margin, epsilon
    for x in by.stream(8, rows=6, like=model):
        for _ in range(steps):
            z = expected.step(x)
            if not expected.used:
                break
        assert by.close(adapter(x), z)
        assert step_of(adapter).used == expected.used or steps == 2
        by.assert_alike(adapter, expected)
        assert ("average" in adapter.memory) == ("average" in expected.memory)
        for name, tensor in expected.memory.items():
            assert by.close(adapter.memory[name], tensor)


def peaked(classes: int, nats: float) -> list[float]:
    """Logits whose first stands out, of the entropy asked for; found by halving."""
    low, high = 0.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        total = math.exp(middle) + classes - 1
        p, q = math.exp(middle) / total, 1 / total
        h = -p * math.log(p) - (classes - 1) * q * math.log(q)
        low, high = (middle, high) if h > nats else (low, middle)
    return [low] + [0.0] * (classes - 1)


@pytest.mark.parametrize("classes", [2, 7, 10, 65, 200, 1000])
@pytest.mark.parametrize("options", [{}, {"margin": 0.25}])
def test_the_margin_scales_with_the_classes(classes: int, options: dict[str, Any]) -> None:
    limit = options.get("margin", 0.4) * math.log(classes)
    adapter = eq.create("eta", by.Scale(classes), parameters="all", **options)
    x = torch.tensor(
        [peaked(classes, limit * f) for f in (0.5, 1 - 1e-6, 1 + 1e-6, 1.5)], dtype=torch.float64
    )
    adapter(x)
    assert step_of(adapter).used == 2
    h = by.entropy(x[:2])
    assert step_of(adapter).loss == pytest.approx(float(((limit - h).exp() * h).sum() / 2))


@pytest.mark.parametrize(
    ("x", "margin"), [([0.0, 0.0], 1.0), ([0.0, 0.0, 0.0, 0.0], 1.0), (SURE, 0.0)], ids=["2", "4", "sure"]
)
def test_an_entropy_at_the_margin_is_not_reliable(x: list[float], margin: float) -> None:
    adapter = eq.create("eta", by.Scale(len(x)), parameters="all", margin=margin)
    adapter(torch.tensor([x, x], dtype=torch.float64))
    assert "none of 2" in step_of(adapter).reason


@pytest.mark.parametrize(
    ("then", "epsilon"),
    [(SURE, 1.0), (SURE[::-1], 0.0)],
    ids=["the same answer, cosine 1", "another answer, cosine 0"],
)
def test_a_cosine_at_epsilon_is_not_new(then: list[float], epsilon: float) -> None:
    adapter = eq.create("eta", by.Scale(2), parameters="all", epsilon=epsilon, learning_rate=0.0)
    adapter(torch.tensor([SURE, SURE], dtype=torch.float64))
    assert adapter.memory["average"].tolist() == [1.0, 0.0]
    adapter(torch.tensor([then, then], dtype=torch.float64))
    assert "none of 2" in step_of(adapter).reason
    assert adapter.memory["average"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("classes", "expected"), [(7, 0.476), (10, 0.398), (200, 0.0891), (1000, 0.05)])
def test_the_default_epsilon_follows_the_number_of_classes(classes: int, expected: float) -> None:
    assert default_epsilon(classes) == pytest.approx(expected, abs=5e-4)
    first = torch.full((classes,), -9.0, dtype=torch.float64)
    first[0] = 9.0
    for cosine, used in ((0.98 * expected, 1), (1.02 * expected, 0)):
        adapter = eq.create("eta", by.Scale(classes), parameters="all", margin=1.0, learning_rate=0.0)
        then = torch.full((classes,), -30.0, dtype=torch.float64)
        then[0], then[1] = math.log(cosine), math.log(math.sqrt(1 - cosine**2))
        adapter(30 * first[None])
        adapter(then[None])
        assert ("none of 1" in step_of(adapter).reason) == (used == 0)


def test_a_cosine_below_epsilon_is_new() -> None:
    adapter = eq.create("eta", by.Scale(2), parameters="all", epsilon=1e-6, learning_rate=0.0)
    adapter(torch.tensor([SURE, SURE], dtype=torch.float64))
    adapter(torch.tensor([SURE, SURE[::-1]], dtype=torch.float64))
    assert adapter.memory["average"].tolist() == pytest.approx([0.9, 0.1])


def test_the_first_batch_is_not_asked_to_be_new() -> None:
    adapter = eq.create("eta", by.Scale(3), parameters="all", epsilon=0.0)
    unsure, sure = [0.0, 0.1, 0.0], [5.0, 0.0, 1.0]
    adapter(torch.tensor([unsure, unsure], dtype=torch.float64))
    assert step_of(adapter).used == 0
    adapter(torch.tensor([sure, unsure, sure], dtype=torch.float64))
    assert step_of(adapter).used == 2
    assert by.close(adapter.memory["average"], by.softmax(torch.tensor([sure], dtype=torch.float64))[0])
    adapter(torch.tensor([sure, unsure, sure], dtype=torch.float64))
    assert step_of(adapter).used == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["eta", "eata"])  # which does not go back to the source either
def test_where_nothing_is_kept_only_the_statistics_follow(method: str, optimizer: str) -> None:
    model = by.flat_model()
    source = eq.SourceStatistics.measure(model, by.stream(2, seed=9), fisher=True, progress=False)
    options: dict[str, Any] = {"margin": 0.9, "epsilon": 0.0, "learning_rate": 0.05}
    adapter = eq.create(method, model, source, optimizer=optimizer, **options)
    first, second = by.stream(2)
    adapter(first)
    assert step_of(adapter).updated
    weights = {name: p.detach().clone() for name, p in adapter.student.named_parameters()}
    kept = dict(adapter.memory)
    expected = by.ByHand(model)
    expected.weights = weights
    expected.forward(first)
    assert by.close(adapter(second), expected.forward(second))
    by.assert_alike(adapter, expected)
    assert all(torch.equal(p, weights[name]) for name, p in adapter.student.named_parameters())
    assert kept.keys() == adapter.memory.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in adapter.memory.items())
    assert (step_of(adapter).updated, step_of(adapter).used) == (False, 0)
    assert step_of(adapter).reason == "none of 7 samples is reliable and new"


def test_the_record_tells_of_a_step_though_the_next_kept_nothing() -> None:
    adapter = eq.create("eta", by.Scale(3), parameters="all", steps=2, learning_rate=0.1)
    adapter(torch.tensor([[4.0, 0.0, 0.0], [3.0, 0.0, 0.5]], dtype=torch.float64))
    moved = not torch.equal(adapter.student.get_parameter("weight"), torch.ones(3, dtype=torch.float64))
    assert (step_of(adapter).updated, moved) == (True, True)


def test_a_sample_left_out_has_no_part_in_the_loss() -> None:
    sure, unsure = [5.0, 0.0, 1.0], [0.3, 0.1, 0.0]
    alone, together = (eq.create("eta", by.Scale(3), parameters="all", learning_rate=0.1) for _ in range(2))
    alone(torch.tensor([sure, sure], dtype=torch.float64))
    together(torch.tensor([unsure, sure, unsure, sure], dtype=torch.float64))
    assert by.close(together.student.get_parameter("weight"), alone.student.get_parameter("weight"))
    assert by.close(together.memory["average"], alone.memory["average"])


def test_lone_samples_are_selected_in_their_window() -> None:
    model = by.flat_model()
    adapter = eq.create("eta", model, margin=0.6, epsilon=0.7, window=3, learning_rate=0.05)
    expected, used = Selecting(model, "sgd", 0.05), []
    expected.epsilon = 0.7
    samples = by.stream(9, rows=1)
    for place, x in enumerate(samples):
        window = torch.cat(samples[max(0, place - 2) : place + 1])
        count = 0
        if place % 3 == 2:
            z = expected.step(window)
            count = expected.used
        else:
            z = expected.forward(window) if place else expected.predict(x)
        assert by.close(adapter(x), z[-1:]), place
        assert step_of(adapter).used == count
        used.append(count)
    by.assert_alike(adapter, expected)
    assert any(0 < count < 3 for count in used)
