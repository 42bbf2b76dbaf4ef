"""Pseudo-labels against formulas written out here and in `byhand`."""

from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import same, snapshot, step_of

MODELS = {"BatchNorm1d": by.flat_model, "BatchNorm2d": by.conv_model, "LayerNorm": by.layer_norm_model}


def learn(expected: by.ByHand, x: Tensor, descent: by.Descent, confidence: float) -> tuple[Tensor, int]:
    """A step down the cross-entropy of the confident samples; the logits of before it, and how many."""
    expected.watch()
    z = expected.forward(x)
    terms = [-p[int(p.argmax())].log() for p in by.softmax(z) if p.max() > confidence]
    if terms:
        expected.descend(sum(terms, torch.zeros(())) / len(terms), descent)
    return z.detach(), len(terms)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("confidence", [0.9, 0.6])
def test_three_batches_are_exact(kind: str, optimizer: str, confidence: float) -> None:
    model = MODELS[kind]()
    options: dict[str, Any] = {} if confidence == 0.9 else {"confidence": confidence}
    adapter = eq.create("pseudo_label", model, optimizer=optimizer, learning_rate=0.05, **options)
    expected, descent = by.ByHand(model), by.Adam(0.05) if optimizer == "adam" else by.Momentum(0.05)
    left_out = 0
    for x in by.stream(3, like=model):
        logits, used = learn(expected, x, descent, confidence)
        assert by.close(adapter(x), logits)
        assert step_of(adapter).used == used
        left_out += len(x) - used
    assert 0 < left_out < 21  # the threshold decides
    by.assert_alike(adapter, expected)
    assert not by.close(expected.weights["norm.weight"], expected.source["norm.weight"], 1e-5)


def test_an_empty_filter_takes_no_step_and_leaves_the_momentum() -> None:
    sure = torch.tensor([[5.0, 0.0, 1.0], [1.0, 6.0, 0.0]], dtype=torch.float64)
    unsure = torch.tensor([[0.1, 0.2, 0.3], [0.5, 0.5, 0.0]], dtype=torch.float64)
    adapter = eq.create("pseudo_label", by.Scale(3), parameters="all", learning_rate=0.1)
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    descent = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for x in (sure, unsure, sure):
        before = snapshot(adapter)
        adapter(x)
        if x is unsure:
            assert same(before, snapshot(adapter))
            assert (step_of(adapter).used, step_of(adapter).updated) == (0, False)
            assert step_of(adapter).reason == "none of 2 samples has a probability above 0.9"
            continue
        descent.zero_grad()
        torch.nn.functional.cross_entropy(x * weight, torch.tensor([0, 1])).backward()
        descent.step()
        assert by.close(adapter.student.get_parameter("weight"), weight)


def test_a_confidence_of_one_is_never_exceeded_and_of_zero_always() -> None:
    (x,) = by.stream(1)
    for confidence, used in ((1.0, 0), (0.0, len(x))):
        adapter = eq.create("pseudo_label", by.flat_model(), confidence=confidence)
        adapter(x)
        assert step_of(adapter).used == used


def test_one_class_only_is_learned_from() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0], [5.0, 1.0, 0.0]], dtype=torch.float64)
    adapter = eq.create("pseudo_label", by.Scale(3), parameters="all", optimizer="sgd", learning_rate=0.1)
    adapter(logits)
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    loss = -((logits * weight).log_softmax(1)[:, 0]).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    assert by.close(adapter.student.get_parameter("weight"), 1 - 0.1 * gradient)


def test_a_sample_that_is_left_out_does_not_reach_the_gradient() -> None:
    sure, unsure = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.1, 0.2, -1e30]])
    alone, both = (
        eq.create("pseudo_label", by.Scale(3).float(), parameters="all", learning_rate=0.1) for _ in range(2)
    )
    alone(sure)
    both(torch.cat([sure, unsure]))
    assert torch.equal(alone.student.get_parameter("weight"), both.student.get_parameter("weight"))
