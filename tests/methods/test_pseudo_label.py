"""Pseudo-labels against formulas written out here and in `byhand`."""

import torch
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import same, snapshot, step_of


class PseudoLabels(by.Learner):
    confidence = 0.9

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        terms = [-p[int(p.argmax())].log() for p in by.softmax(z) if p.max() > self.confidence]
        return sum(terms, torch.zeros(())) / max(len(terms), 1), len(terms)


class Unsurer(PseudoLabels):
    confidence = 0.6


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
