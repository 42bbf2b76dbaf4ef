"""POEM against formulas written out here: levels, bets, targets, steps; no shift, no adaptation."""

import bisect
import math

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.poem import betting, level_of, quantile_at
from tests.support import byhand as by
from tests.support.models import make, measured, same, snapshot, step_of


def level(h: float, quantiles: list[float]) -> float:
    """The share of source samples below an entropy, by the quantiles."""
    if h in quantiles:
        places = [i for i, q in enumerate(quantiles) if q == h]
        return (places[0] + places[-1]) / 2 / (len(quantiles) - 1)
    above = bisect.bisect(quantiles, h)
    if above in (0, len(quantiles)):
        return float(above > 0)
    low, high = quantiles[above - 1], quantiles[above]
    return (above - 1 + (h - low) / (high - low)) / (len(quantiles) - 1)


def inverse(u: float, quantiles: list[float]) -> float:
    place = u * (len(quantiles) - 1)
    below = min(int(place), len(quantiles) - 2)
    return quantiles[below] + (place - below) * (quantiles[below + 1] - quantiles[below])


def less_contrast(model: nn.Sequential) -> eq.SourceStatistics:
    """Of source data whose entropies are higher than those of the stream."""
    return measured(model, [0.3 * x for x in by.stream(5, rows=40, like=model, seed=8)])


class Betting(by.Learner):
    """A step towards the targets of the bets, in Python's numbers, sample after sample."""

    def __init__(self, model: nn.Sequential, optimizer: str, rate: float) -> None:
        super().__init__(model, optimizer, rate)
        self.quantiles = less_contrast(model).entropies.double().tolist()
        self.epsilon, self.squares = 0.0, 0.0

    def targets(self, entropies: Tensor) -> Tensor:
        """The entropy that each sample is moved to."""
        made = []
        for h in entropies.tolist():
            u = level(h, self.quantiles)
            protected = 0.5 * self.epsilon * u**2 + (1 - 0.5 * self.epsilon) * u
            beyond = h - min(max(h, self.quantiles[0]), self.quantiles[-1])
            made.append(inverse(protected, self.quantiles) + (1 - abs(self.epsilon) / 2) * beyond)
            gain = u - 0.5
            g = gain / (1 + self.epsilon * gain)
            self.squares += g * g
            if g:
                self.epsilon += g / math.sqrt(self.squares) / (8 * math.sqrt(3))
            self.epsilon = min(max(self.epsilon, -1.8), 1.8)
        return torch.tensor(made, dtype=torch.float64)

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        h, limit = by.entropy(z), 0.7 * math.log(by.CLASSES)
        targets, kept, weight = self.targets(h.detach()), h.detach() < limit, 1 / (h.detach() - limit).exp()
        self.memory = {"epsilon": torch.tensor(self.epsilon, dtype=torch.float64)}
        return (0.5 * (weight * h - weight * targets) ** 2)[kept].sum() / kept.sum(), int(kept.sum())


def test_levels_and_quantiles_are_inverse() -> None:
    quantiles = torch.linspace(0, 1, 257, dtype=torch.float64) ** 3
    values = torch.tensor([0.0, 1e-9, 0.1, 0.5, 0.999, 1.0], dtype=torch.float64)
    levels = level_of(values, quantiles)
    assert torch.allclose(
        levels, torch.tensor([level(h, quantiles.tolist()) for h in values.tolist()]).double()
    )
    assert torch.allclose(quantile_at(levels, quantiles), values, atol=1e-12)
    outside = level_of(torch.tensor([-1.0, 2.0, torch.nan], dtype=torch.float64), quantiles)
    assert outside[:2].tolist() == [0.0, 1.0]
    assert bool(outside[2].isnan())


def test_entropies_that_many_source_samples_share_are_in_the_middle_of_their_levels() -> None:
    quantiles = torch.cat([torch.zeros(129), torch.linspace(0.01, 1, 128)])
    assert float(level_of(torch.zeros(1), quantiles)) == pytest.approx(0.25)
    samples = quantile_at(torch.rand(20_000, generator=torch.Generator().manual_seed(0)), quantiles)
    assert float(level_of(samples, quantiles).mean()) == pytest.approx(0.5, abs=0.01)
    assert level_of(torch.tensor([0.3]), torch.full((257,), 0.3)).tolist() == [0.5]


@pytest.mark.parametrize(("gain", "sign"), [(0.5, 1), (-0.5, -1)])
def test_bets_grow_with_evidence_and_are_bounded(gain: float, sign: int) -> None:
    bets, epsilon, squares = betting(torch.full((3000,), gain), torch.zeros(()), torch.zeros(()))
    assert bets[0] == 0
    assert float(bets[1]) == pytest.approx(sign / (8 * math.sqrt(3)))
    assert float(epsilon) == pytest.approx(sign * 1.8)
    assert bool(((1 + bets * gain) > 0).all())
    assert bool(squares.isfinite())


def test_a_gain_of_nan_is_no_bet() -> None:
    bets, epsilon, squares = betting(torch.tensor([torch.nan, 0.0]), torch.zeros(()), torch.zeros(()))
    assert bets.tolist() == [0.0, 0.0]
    assert (float(epsilon), float(squares)) == (0.0, 0.0)


def classified(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows, 6, generator=generator, dtype=torch.float64)


def moved(adapter: eq.Adapter, model: nn.Module) -> float:
    """The largest change of a weight."""
    return max(
        float((p - model.get_parameter(n)).detach().abs().max())
        for n, p in adapter.student.named_parameters()
    )


def test_without_a_shift_nothing_is_learned() -> None:
    model = by.layer_norm_model()
    source = measured(model, [classified(500, seed) for seed in range(4)])
    same_domain, shifted, tent = (
        eq.create(name, model, source, optimizer="sgd", learning_rate=0.02)
        for name in ("poem", "poem", "tent")
    )
    for seed in range(100, 130):
        x = classified(32, seed)
        same_domain(x)
        tent(x)
        shifted(0.2 * x + 0.7)
    assert abs(float(same_domain.memory["epsilon"])) < 0.2
    assert abs(float(shifted.memory["epsilon"])) > 0.8
    assert moved(same_domain, model) < 0.1 * moved(tent, model)
    assert moved(same_domain, model) < 0.1 * moved(shifted, model)


@pytest.mark.parametrize("place", [0.5, 2.0])
def test_without_a_bet_an_entropy_beyond_those_of_the_source_is_moved_nowhere(place: float) -> None:
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    h = float(by.entropy(x)[0])
    quantiles = torch.linspace(1.2 * h, 1.5 * h, 257) if place > 1 else torch.linspace(0.0, 0.5 * h, 257)
    source = eq.SourceStatistics(h0=0.5, kappa=1.0, num_classes=4, entropies=quantiles)
    adapter = eq.create("poem", by.Scale(4), source, parameters="all", margin=1.0, learning_rate=0.05)
    adapter(x)  # no bet yet: the target is the entropy itself
    assert step_of(adapter).loss == 0.0
    assert torch.equal(adapter.student.get_parameter("weight"), torch.ones(4, dtype=torch.float64))
    adapter(x)
    assert (step_of(adapter).loss or 0.0) > 0


def test_higher_entropies_are_lowered_and_lower_ones_raised() -> None:
    model = by.Scale(4)
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0]], dtype=torch.float64).repeat(64, 1)
    h = float(by.entropy(x)[0])
    for share, direction in ((0.5, 1), (1.5, -1)):  # the source is surer, or less sure
        quantiles = torch.linspace(0.0, 2 * share * h, 257)
        source = eq.SourceStatistics(h0=0.5, kappa=1.0, num_classes=4, entropies=quantiles)
        adapter = eq.create("poem", model, source, parameters="all", margin=1.0, learning_rate=0.05)
        adapter(x)
        change = float(adapter.student.get_parameter("weight")[0].detach()) - 1
        assert math.copysign(1, change) == direction


def test_an_empty_filter_takes_no_step_and_the_bets_go_on() -> None:
    model, source = make("layer_norm")
    adapter = eq.create("poem", model, source, margin=1.5, learning_rate=0.05)
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    adapter(x)
    none = eq.create("poem", model, source, margin=0.0, learning_rate=0.05)
    before = snapshot(none)
    none(x)
    after = snapshot(none)
    assert after.pop("poem.memory.epsilon") == adapter.memory["epsilon"]
    assert after.pop("poem.memory.squares") == adapter.memory["squares"]
    assert same({name: before[name] for name in after}, after)
    assert step_of(none).reason == "none of 8 samples is reliable"
