"""MEMO against formulas written out here and in `byhand`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.parts.views import AUGMIX_DRAWS, augmix_views
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot, step_of

VIEWS, RATE = 4, 0.3


def blended(hand: by.ByHand, x: Tensor, prior: float) -> Tensor:
    """The logits with statistics of (prior · source + those of x) / (prior + 1), which have no gradient."""
    h = hand.hidden(x)
    mean, var, _ = hand.moments(h.detach())
    return hand.finish(h, (prior * hand.mean + mean) / (prior + 1), (prior * hand.var + var) / (prior + 1))


def by_hand(
    model: nn.Sequential, x: Tensor, random: torch.Generator, prior: float
) -> tuple[Tensor, list[float]]:
    """The answers to a batch, each sample with weights of its own, and the losses."""
    draws = torch.rand(len(x), VIEWS, AUGMIX_DRAWS, generator=random)
    names = [name for name, _ in model.named_parameters()]
    answers, losses = [], []
    for image, numbers in zip(x, draws, strict=True):
        hand = by.ByHand(model, names)
        hand.watch()
        views = augmix_views(torch.stack([image] * VIEWS), numbers)
        mean = by.softmax(blended(hand, views, prior)).sum(0) / VIEWS
        loss = -(mean * mean.log()).sum()
        losses.append(float(loss.detach()))
        for name, gradient in hand.slope(loss).items():
            hand.weights[name] = hand.weights[name].detach() - RATE * gradient
        answers.append(blended(hand, image[None], prior))
    return torch.cat(answers), losses


def adapter_of(model: nn.Module, **options: Any) -> eq.Adapter:
    return eq.create("memo", model, **{"views": VIEWS, "learning_rate": RATE, **options})


@pytest.mark.parametrize("prior", [16.0, 2.0])
def test_answers_are_those_of_the_formulas_and_the_weights_the_sources(prior: float) -> None:
    model = by.conv_model()
    adapter, random = adapter_of(model, prior=prior), torch.Generator().manual_seed(0)
    before = snapshot(adapter)
    for x in by.stream(3, rows=5, like=model):
        expected, losses = by_hand(model, x, random, prior)
        assert by.close(adapter(x), expected, 1e-7)
        assert step_of(adapter).used == len(x)
        assert step_of(adapter).loss == pytest.approx(sum(losses) / len(losses))
        assert by.close(adapter.predict(x), model(x), 1e-7)
    after = snapshot(adapter)
    assert all(torch.equal(before[name], after[name]) for name in before if "random" not in name)


def test_the_step_lowers_the_entropy_of_the_mean_answer() -> None:
    model = by.conv_model()
    (x,) = by.stream(1, rows=6, like=model)
    still, learned = adapter_of(model, learning_rate=0.0)(x), adapter_of(model)(x)
    assert not torch.allclose(still, learned)

    def entropy(z: Tensor) -> float:
        return float(-(z.softmax(1) * z.log_softmax(1)).sum())

    assert entropy(learned) < entropy(still)


@pytest.mark.parametrize("kind", ["batch_norm", "layer_norm"])
def test_an_answer_depends_on_no_other_sample(kind: str) -> None:
    model, _ = make(kind)
    x = drifted(3)
    other = torch.cat([x[:1], 5 * drifted(2, seed=4)])
    assert torch.allclose(adapter_of(model)(x)[0], adapter_of(model)(other)[0], atol=1e-6)


def test_a_sample_whose_step_is_not_finite_is_answered_without_it() -> None:
    model, _ = make("norm_free")
    with torch.no_grad():
        model.get_parameter("4.weight").mul_(1e30)
    x = drifted(3)
    x[1] = 0
    adapter = adapter_of(model, learning_rate=1e12)
    answer = adapter(x)
    assert answer.shape == (3, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert same(before, dict(adapter.student.state_dict()))


def test_no_step_is_reported_where_the_rate_is_beyond_all_numbers() -> None:
    model, _ = make()
    adapter = adapter_of(model, learning_rate=1e300)
    assert bool(adapter(drifted(2)).isfinite().all())
    assert (step_of(adapter).used, step_of(adapter).updated) == (0, False)
    assert "no sample gave a finite step" in step_of(adapter).reason
