"""Objectives of entropy minimisation against formulas written out here, and methods that minimise COME."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.gradient import GradientMethod
from equipoise.core.method import Context
from equipoise.factory import make_method
from equipoise.methods.parts.objectives import mean_over, objective
from tests.methods.test_eta import Selecting
from tests.support import byhand as by

NOT_NEEDED: Any = None


def come(z: Tensor) -> Tensor:
    """Belief, uncertainty and their entropy as the paper has them, with the norm as a constant."""
    norm = (z * z).sum(1, keepdim=True).sqrt()
    evidence = (z / norm * norm.detach()).exp()
    total = evidence.sum(1, keepdim=True) + z.shape[1]
    belief, uncertain = evidence / total, z.shape[1] / total[:, 0]
    return -(belief * belief.log()).sum(1) - uncertain * uncertain.log()


def logits(classes: int, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (scale * torch.randn(6, classes, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_come_is_the_entropy_of_belief_and_uncertainty(classes: int, scale: float) -> None:
    ours, theirs = (logits(classes, scale).requires_grad_() for _ in range(2))
    values = objective("come", ours)
    assert by.close(values, come(theirs))
    (gradient,), (expected,) = (
        torch.autograd.grad(v.sum(), z) for v, z in ((values, ours), (come(theirs), theirs))
    )
    assert by.close(gradient, expected)


def test_come_counts_the_classes_and_not_to_a_thousand() -> None:
    for classes in (2, 5, 1000):  # logits of 0: each class has half of 1 / C, the undecided the other half
        expected = math.log(2) + 0.5 * math.log(classes)
        assert float(objective("come", torch.zeros(1, classes))) == pytest.approx(expected)


def test_the_gradient_of_come_does_not_scale_the_logits() -> None:
    z = logits(7).requires_grad_()
    (along,) = torch.autograd.grad(objective("come", z).sum(), z)
    (free,) = torch.autograd.grad(objective("entropy", z).sum(), z)
    assert torch.allclose((along * z).sum(1), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert bool(((free * z).sum(1).abs() > 1e-3).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_come_does_not_overflow_in_half_precision(dtype: torch.dtype, scale: float) -> None:
    z = logits(10, scale, dtype).requires_grad_()
    values = objective("come", z)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    assert bool(values.isfinite().all())
    assert bool(gradient.isfinite().all())
    single = objective("come", z.detach().float())
    assert torch.equal(values, single)


def test_the_norm_is_frozen_where_a_class_is_masked() -> None:
    z = torch.tensor([[1.0, -2.0, 0.5, -math.inf]], requires_grad=True)
    (slope,) = torch.autograd.grad(objective("come", z).sum(), z)
    assert abs(float((slope[0, :3] * z.detach()[0, :3]).sum())) < 1e-5
    assert float(slope[0, :3].abs().sum()) > 0.01


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [-math.inf, 1.0, 2.0], [3e38, -3e38, 0.0]])
def test_come_is_finite_for_the_strangest_logits(row: list[float]) -> None:
    z = torch.tensor([row], requires_grad=True)
    values = objective("come", z)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    assert bool(values.isfinite().all())
    assert bool(gradient.isfinite().all())


def test_large_logits_leave_nothing_undecided() -> None:
    z = logits(5)
    assert torch.allclose(objective("come", z + 30), by.entropy(z), atol=1e-9)
    assert not torch.allclose(objective("come", z), by.entropy(z), atol=0.1)  # the scale of logits matters


def test_a_mean_over_samples_ignores_the_others() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0, torch.inf])
    assert float(mean_over(torch.tensor([True, False, True, False]), values)) == 2.0
    assert float(mean_over(torch.zeros(4, dtype=torch.bool), values)) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["eta", "sar", "poem", "pseudo_label"])
def test_a_row_that_is_left_out_has_no_part_in_the_gradient(method: str, bad: float) -> None:
    quantiles = torch.linspace(0.0, 2.0, 257)
    memory = {"epsilon": torch.tensor(0.5), "squares": torch.tensor(1.0)}
    options: dict[str, Any] = {"confidence": 0.3} if method == "pseudo_label" else {"margin": 0.9}
    context = Context(NOT_NEEDED, NOT_NEEDED, memory=memory, constants={"quantiles": quantiles})
    learner, _ = make_method(method, options)
    assert isinstance(learner, GradientMethod)
    z, clean = logits(4), logits(4)
    z[2], clean[2] = bad, 0.0
    gradients: list[Tensor] = []
    for answers in (z.requires_grad_(), clean.requires_grad_()):
        loss = learner.loss(answers, {}, context)
        assert 0 < int(loss.used) < 6
        gradients += torch.autograd.grad(loss.value, answers)
    assert bool(gradients[0][2].eq(0).all())
    assert bool(gradients[0].isfinite().all())
    assert by.close(gradients[0], gradients[1]) or method == "poem"


class Come(by.Learner):
    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        return come(z).sum() / len(z), len(z)


class SelectedCome(Selecting):
    """ETA selects and weighs by the entropy, and minimises COME."""

    epsilon = 2.0

    def objective(self, z: Tensor) -> Tensor:
        return come(z)


def test_an_entropy_over_one_more_outcome_is_another_filter() -> None:
    z, limit = by.ByHand(by.flat_model()).forward(by.stream(1, rows=60)[0]), 0.6 * math.log(by.CLASSES)
    assert not torch.equal(by.entropy(z) < limit, come(z) < limit)


def test_come_keeps_answers_less_sure_than_entropy_does() -> None:
    x, sure = logits(4, 1.0), {}
    for name in ("entropy", "come"):
        adapter = eq.create(
            "tent", by.Scale(4), parameters="all", objective=name, optimizer="sgd", learning_rate=0.5
        )
        for _ in range(40):
            adapter(x)
        sure[name] = float(by.softmax(adapter.predict(x)).max(1).values.mean())
    assert sure["come"] < sure["entropy"]
