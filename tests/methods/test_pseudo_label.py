"""Pseudo-labels against formulas written out here and in `byhand`."""

from typing import Any

import pytest
import torch
from torch import Tensor

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
    flat_model,
    layer_norm_model,
    softmax,
    stream,
)
from tests.support.models import drifted, make, same, snapshot

MODELS = {"BatchNorm1d": flat_model, "BatchNorm2d": conv_model, "LayerNorm": layer_norm_model}


def learn(expected: ByHand, x: Tensor, descent: Descent, confidence: float) -> tuple[Tensor, int]:
    """A step down the cross-entropy of the confident samples; the logits of before it, and how many."""
    expected.watch()
    z = expected.forward(x)
    terms = [-p[int(p.argmax())].log() for p in softmax(z) if p.max() > confidence]
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
    expected, descent = ByHand(model), Adam(0.05) if optimizer == "adam" else Momentum(0.05)
    left_out = 0
    for x in stream(3, like=model):
        logits, used = learn(expected, x, descent, confidence)
        assert close(adapter(x), logits)
        assert adapter.last is not None
        assert adapter.last.used == used
        left_out += len(x) - used
    assert 0 < left_out < 21  # the threshold decides
    assert_alike(adapter, expected)
    assert not close(expected.weights["norm.weight"], expected.source["norm.weight"], 1e-5)


def test_an_empty_filter_takes_no_step_and_leaves_the_momentum() -> None:
    sure = torch.tensor([[5.0, 0.0, 1.0], [1.0, 6.0, 0.0]], dtype=torch.float64)
    unsure = torch.tensor([[0.1, 0.2, 0.3], [0.5, 0.5, 0.0]], dtype=torch.float64)
    adapter = eq.create("pseudo_label", Scale(3), parameters="all", learning_rate=0.1)
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    descent = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for x in (sure, unsure, sure):
        before = snapshot(adapter)
        adapter(x)
        assert adapter.last is not None
        if x is unsure:
            assert same(before, snapshot(adapter))
            assert (adapter.last.used, adapter.last.updated) == (0, False)
            assert adapter.last.reason == "none of 2 samples has a probability above 0.9"
            continue
        descent.zero_grad()
        torch.nn.functional.cross_entropy(x * weight, torch.tensor([0, 1])).backward()
        descent.step()
        assert close(adapter.student.get_parameter("weight"), weight)


def test_a_confidence_of_one_is_never_exceeded_and_of_zero_always() -> None:
    (x,) = stream(1)
    for confidence, used in ((1.0, 0), (0.0, len(x))):
        adapter = eq.create("pseudo_label", flat_model(), confidence=confidence)
        adapter(x)
        assert adapter.last is not None
        assert adapter.last.used == used


def test_one_class_only_is_learned_from() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0], [5.0, 1.0, 0.0]], dtype=torch.float64)
    adapter = eq.create("pseudo_label", Scale(3), parameters="all", optimizer="sgd", learning_rate=0.1)
    adapter(logits)
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    loss = -((logits * weight).log_softmax(1)[:, 0]).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    assert close(adapter.student.get_parameter("weight"), 1 - 0.1 * gradient)


def test_a_sample_that_is_left_out_does_not_reach_the_gradient() -> None:
    sure, unsure = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.1, 0.2, -1e30]])
    alone, both = (
        eq.create("pseudo_label", Scale(3).float(), parameters="all", learning_rate=0.1) for _ in range(2)
    )
    alone(sure)
    both(torch.cat([sure, unsure]))
    assert torch.equal(alone.student.get_parameter("weight"), both.student.get_parameter("weight"))


@pytest.mark.parametrize("kind", ["batch_norm", "layer_norm"])
def test_samples_that_come_alone_are_learned_from(kind: str) -> None:
    model, _ = make(kind)
    adapter = eq.create("pseudo_label", model, confidence=0.0, window=3)
    used = []
    for seed in range(4):
        assert adapter(drifted(1, seed)).isfinite().all()
        assert adapter.last is not None
        used.append(adapter.last.used)
    assert used == ([0, 0, 3, 0] if kind == "batch_norm" else [1, 1, 1, 1])


def test_a_sample_of_nan_changes_nothing() -> None:
    model, _ = make()
    adapter, clean = (eq.create("pseudo_label", model, confidence=0.2) for _ in range(2))
    x = drifted(8)
    logits = adapter(torch.cat([x, torch.full_like(x[:1], torch.nan)]))
    assert torch.equal(logits[:8], clean(x))
    assert logits[8].isnan().all()
    assert same(snapshot(adapter), snapshot(clean))


@pytest.mark.parametrize("options", [{"confidence": -0.1}, {"confidence": 1.1}, {"window": 0}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(eq.errors.OptionError, match=next(iter(options))):
        eq.create("pseudo_label", flat_model(), **options)
