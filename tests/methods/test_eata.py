"""EATA against formulas written out here and in `byhand`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.methods.test_eta import Selecting
from tests.support import byhand as by
from tests.support.models import same, snapshot, step_of

MARGIN, EPSILON = 0.6, 0.8
SINGLE = 1e-6  # the Fisher diagonal is kept in single precision


def source_batches(model: nn.Sequential) -> list[Tensor]:
    """Of uneven sizes: each batch counts the same."""
    (whole,) = by.stream(1, rows=21, like=model, seed=9)
    return [whole[:4], whole[4:12], whole[12:]]


def measured(model: nn.Sequential, fisher: Any = True) -> eq.SourceStatistics:
    return eq.SourceStatistics.measure(model, source_batches(model), fisher=fisher, progress=False)


def fisher_of(model: nn.Sequential, learned: Iterable[str] = by.NORM) -> dict[str, Tensor]:
    """The mean over batches of the square of the mean gradient of −ln p(argmax)."""
    hand = by.ByHand(model, learned)
    total = {name: torch.zeros_like(hand.weights[name]) for name in hand.learned}
    batches = source_batches(model)
    for x in batches:
        hand.watch()
        p = by.softmax(hand.forward(x))
        largest = p.max(1).values
        for name, gradient in hand.slope(-largest.log().sum() / len(x)).items():
            total[name] += gradient**2
    return {name: value / len(batches) for name, value in total.items()}


class Anchored(Selecting):
    """ETA's steps, held back by the penalty."""

    alpha = 2.0

    def __init__(
        self, model: nn.Sequential, optimizer: str, rate: float, learned: Iterable[str] = by.NORM
    ) -> None:
        super().__init__(model, optimizer, rate, learned)
        self.fisher = fisher_of(model, self.learned)
        self.penalties: list[float] = []

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        selected, used = super().loss(z, x)
        penalty = torch.zeros((), dtype=torch.float64)
        for name, fisher in self.fisher.items():
            penalty = penalty + (fisher * (self.weights[name] - self.source[name]) ** 2).sum()
        self.penalties += [self.alpha * float(penalty.detach())] if used else []
        return selected + self.alpha * penalty, used


@pytest.mark.parametrize("build", [by.flat_model, by.conv_model, by.layer_norm_model])
def test_the_fisher_diagonal_is_exact(build: Any) -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    source, expected = measured(model), fisher_of(model)
    assert source.fisher.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(source.fisher[name].double(), value, rtol=SINGLE, atol=0), name
    assert same(before, model.state_dict())


def test_the_loss_on_record_has_the_penalty_in_it() -> None:
    model = by.flat_model()
    options: dict[str, Any] = {"margin": 1.0, "epsilon": 2.0, "learning_rate": 0.02}
    held = eq.create("eata", model, measured(model), fisher_alpha=5.0, **options)
    free = eq.create("eta", model, **options)
    first, second = by.stream(2)
    for adapter in (held, free):
        adapter(first)
    moved = {name: p - model.get_parameter(name) for name, p in held.student.named_parameters()}
    penalty = sum(
        float((fisher * moved[name].detach() ** 2).sum()) for name, fisher in fisher_of(model).items()
    )
    assert penalty > 0
    for adapter in (held, free):
        adapter(second)
    loss, without = (step_of(adapter).loss for adapter in (held, free))
    assert loss is not None and without is not None
    assert loss - without == pytest.approx(5 * penalty)


def test_without_the_penalty_it_is_eta() -> None:
    model = by.flat_model()
    options: dict[str, Any] = {"margin": MARGIN, "epsilon": EPSILON, "learning_rate": 0.02}
    adapters = (
        eq.create("eata", model, measured(model), fisher_alpha=0, **options),
        eq.create("eta", model, **options),
    )
    for x in by.stream(3):
        left, right = (adapter(x) for adapter in adapters)
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("patterns", "learned"),
    [
        (["norm.weight"], ("norm.weight",)),
        (["head"], ("head.weight", "head.bias")),
        (["*.bias", "head.weight"], ("first.bias", "norm.bias", "head.weight", "head.bias")),
    ],
)
def test_the_parameters_named_are_those_measured_and_those_held(
    patterns: list[str], learned: tuple[str, ...]
) -> None:
    model = by.flat_model()
    source, fisher = measured(model, patterns), fisher_of(model, learned)
    assert source.fisher.keys() == set(learned)
    for name, value in fisher.items():
        assert torch.allclose(source.fisher[name].double(), value, rtol=SINGLE, atol=1e-12), name
    options: dict[str, Any] = {
        "margin": MARGIN,
        "epsilon": EPSILON,
        "learning_rate": 0.02,
        "fisher_alpha": 2.0,
    }
    adapter = eq.create("eata", model, source, parameters=patterns, **options)
    expected = Anchored(model, "sgd", 0.02, learned)
    for x in by.stream(4):
        assert by.close(adapter(x), expected.step(x), SINGLE)
    by.assert_alike(adapter, expected, SINGLE)
    assert max(expected.penalties) > 0


def test_the_fisher_diagonal_is_saved_with_the_statistics(tmp_path: Path) -> None:
    model = by.flat_model()
    source = measured(model)
    source.save(tmp_path / "source.safetensors")
    loaded = eq.SourceStatistics.load(tmp_path / "source.safetensors")
    assert loaded == source
    assert same(dict(loaded.fisher), dict(source.fisher))
    left, right = (eq.create("eata", model, s, margin=0.9, learning_rate=0.02) for s in (source, loaded))
    for x in by.stream(3):
        assert torch.equal(left(x), right(x))
    assert same(snapshot(left), snapshot(right))


def test_without_the_fisher_diagonal_the_error_says_how_to_measure_it() -> None:
    model = by.flat_model()
    with pytest.raises(eq.errors.SourceError, match=r"measure\(model, source_loader, fisher=True\)"):
        eq.create("eata", model, measured(model, fisher=False))
    with pytest.raises(eq.errors.SourceError, match=r"SourceStatistics\.measure"):
        eq.create("eata", model)


def test_a_fisher_diagonal_of_other_parameters_will_not_do() -> None:
    model = by.flat_model()
    with pytest.raises(eq.errors.SourceError, match=r"2 of 4 parameters, head\.weight among them.*fisher="):
        eq.create("eata", model, measured(model), parameters=["norm", "head"])
    with pytest.raises(eq.errors.SourceError, match=r"1 of 2 parameters, norm\.bias among them"):
        eq.create("eata", model, measured(model, ["norm.weight"]))


def test_the_anchor_stays_at_the_source_through_a_reset() -> None:
    model = by.flat_model()
    adapter = eq.create("eata", model, measured(model), margin=0.9, epsilon=2.0, learning_rate=0.02)
    first = [adapter(x) for x in by.stream(4)]
    adapter.reset()
    again = [adapter(x) for x in by.stream(4)]
    assert all(map(torch.equal, first, again))
    assert step_of(adapter).updated
