"""Footprints of adapters, against numbers counted here and the formulas of the paper's appendix."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import CLASSES, MODELS, drifted, make

PIXELS = 3 * 6 * 6  # |x|: the numbers in a sample
NORMS = {"batch_norm": 2 * 4 + 2 * 8, "layer_norm": 2 * 8, "group_norm": 2 * 4, "instance_norm": 2 * 4}
HEADS = {"batch_norm": 8, "layer_norm": 8, "group_norm": 64, "instance_norm": 64, "norm_free": 8}  # D


class SmallCNN(nn.Module):
    """Two convolutions, as many batch norms, and a head; of 16 × 16 pixels and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 5, bias=False),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits


PSI = 6 * 25 + 6 + 2 * 6 + 8 * 6 * 25 + 2 * 8  # the parameters before the head
PHI = 10 * 8 + 10  # and of the head
CNN_NORMS = 2 * 6 + 2 * 8  # of those before it, the normalisation's
STATISTICS = 2 * 6 + 2 * 8  # running means and variances
CNN_SOURCE = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=10)


def pictures(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def cnn(method: str, *, batches: int = 1, **options: Any) -> eq.Adapter:
    adapter = eq.create(method, SmallCNN().eval(), CNN_SOURCE, **options)
    for seed in range(batches):
        adapter(pictures(4, seed))
    return adapter


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("supports", [1, 5, 100])
def test_t3a_holds_m_heads(supports: int) -> None:
    held = cnn("t3a", supports=supports).footprint()
    assert held.paper == held.supports.numbers == supports * PHI
    assert held.supports.bytes == 4 * supports * PHI
    assert (held.learned.numbers, held.observations.numbers) == (0, 0)
    assert held.parameters.numbers == PSI + PHI
    for kind, width in HEADS.items():
        adapter = eq.create("t3a", make(kind)[0], supports=supports)
        adapter(drifted(4))
        assert adapter.footprint().paper == supports * (CLASSES * width + CLASSES)


def test_t3a_with_all_supports_holds_one_sum_a_class() -> None:
    held = cnn("t3a").footprint()
    assert held.paper == held.supports.numbers == 10 * 8


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
def test_dec_holds_two_networks(source_copy: str) -> None:
    held = cnn("dec", source_copy=source_copy, parameters="all").footprint()
    assert held.paper == held.parameters.numbers == 2 * (PSI + PHI)
    assert held.learned.numbers == PSI + PHI
    assert held.parameters.bytes == 4 * held.parameters.numbers
    for kind in MODELS:
        model, source = make(kind)
        assert eq.create("dec", model, source, source_copy=source_copy).footprint().paper == 2 * count(model)


def test_dec_on_the_norms_holds_only_the_norms_twice_when_swapped() -> None:
    assert cnn("dec", source_copy="swapped", parameters="norm").footprint().paper == PSI + PHI + CNN_NORMS
    assert cnn("dec", source_copy="resident", parameters="norm").footprint().paper == 2 * (PSI + PHI)


@pytest.mark.parametrize("method", ["tent", "eta", "eata"])
def test_tent_eta_and_eata_hold_the_normalisation_parameters(method: str) -> None:
    for kind, numbers in NORMS.items():
        model, source = make(kind)
        adapter = eq.create(method, model, source)
        adapter(drifted(4))
        held = adapter.footprint()
        assert held.paper == held.learned.numbers == numbers
        assert held.learned.bytes == 4 * numbers


def test_source_and_norm_learn_nothing() -> None:
    for method in ("source", "norm"):
        assert cnn(method).footprint().paper == 0


@pytest.mark.parametrize("capacity", [1, 7, 64])
def test_sotta_holds_the_normalisation_parameters_and_n_samples(capacity: int) -> None:
    for kind, numbers in NORMS.items():
        adapter = eq.create("sotta", make(kind)[0], capacity=capacity)
        assert adapter.footprint().paper == numbers
        adapter(drifted(4))
        held = adapter.footprint()
        assert held.paper == numbers + capacity * PIXELS
        assert (held.observations.numbers, held.samples) == (capacity * PIXELS, capacity)
        assert held.observations.bytes == 4 * capacity * PIXELS


def test_observations_are_counted_in_their_own_type_and_every_input_of_a_sample() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make("batch_norm")[0]

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            logits: Tensor = self.inner(x.float() * mask.float().reshape(-1, 1, 1, 1))
            return logits

    adapter = eq.create("sotta", Bytes(), capacity=5)
    adapter(torch.zeros(4, 3, 6, 6, dtype=torch.uint8), mask=torch.ones(4, dtype=torch.float64))
    held = adapter.footprint()
    assert (held.observations.numbers, held.samples) == (5 * (PIXELS + 1), 5)
    assert held.observations.bytes == 5 * (PIXELS + 8)


def test_everything_is_in_the_total_and_in_bytes() -> None:
    counters = 2  # of batches, in 8 bytes, one in each batch norm
    model, model_size = PSI + PHI + STATISTICS + counters, 4 * (PSI + PHI + STATISTICS) + 8 * counters
    numbers, size = model + 1, model_size + 8  # the temperature counts samples
    source = cnn("source").footprint()
    assert (source.total.numbers, source.total.bytes) == (numbers, size)
    assert source.buffers.numbers == STATISTICS + counters + 1
    resident = cnn("dec", source_copy="resident", tempering="none").footprint()
    assert (resident.total.numbers, resident.total.bytes) == (numbers + model, size + model_size)
    # The source's values of what adapts, Adam's two moments and counter. The host counts lone samples.
    tent = cnn("tent").footprint()
    assert tent.total.numbers == numbers + (CNN_NORMS + STATISTICS + counters) + (2 * CNN_NORMS + 1)
    twice = 4 * (CNN_NORMS + STATISTICS) + 8 * counters
    assert tent.total.bytes == size + twice + 4 * 2 * CNN_NORMS + 8
    for held in (source, resident, tent, cnn("sotta").footprint(), cnn("t3a", supports=3).footprint()):
        parts = (held.parameters, held.buffers, held.supports, held.observations)
        assert held.total.numbers == sum(part.numbers for part in parts)
        assert held.total.bytes == sum(part.bytes for part in parts)


def test_double_precision_takes_twice_the_bytes() -> None:
    single, double = cnn("tent", batches=0), eq.create("tent", SmallCNN().double())
    assert double.footprint().parameters.bytes == 2 * single.footprint().parameters.bytes
    assert double.footprint().total.numbers == single.footprint().total.numbers


@pytest.mark.parametrize("tempering", ["mean", "median"])
def test_observations_of_the_temper_are_in_the_total(tempering: str) -> None:
    plain, tempered = cnn("source"), cnn("source", tempering=tempering)
    kept = {name: tensor for name, tensor in tempered.state_dict().items() if "temperature" in name}
    before = {name: tensor for name, tensor in plain.state_dict().items() if "temperature" in name}
    more = sum(t.numel() for t in kept.values()) - sum(t.numel() for t in before.values())
    assert more > 0
    assert tempered.footprint().total.numbers - plain.footprint().total.numbers == more


@pytest.mark.parametrize("method", eq.list_methods())
def test_only_methods_with_a_memory_store_observations(method: str) -> None:
    model, source = make("batch_norm")
    adapter, stores = eq.create(method, model, source), method in ("sotta", "rotta", "petta")
    assert adapter.footprint().stores_observations == stores
    adapter(drifted(4))
    held = adapter.footprint()
    assert held.stores_observations == stores
    assert (held.observations.numbers > 0) == stores


@pytest.mark.parametrize("method", ["norm", "tent", "eta", "eata"])
def test_lone_samples_are_stored_where_batch_norm_needs_company(method: str) -> None:
    model, source = make("batch_norm")
    adapter = eq.create(method, model, source, window=3)
    for rows in (1, 2, 3, 3, 3):
        adapter(drifted(1, seed=rows))
        held = adapter.footprint()
        assert held.stores_observations
        assert (held.samples, held.observations.numbers) == (rows, rows * PIXELS)
    adapter.reset()
    assert not adapter.footprint().stores_observations


@pytest.mark.parametrize("method", ["tent", "eta", "eata", "dec", "poise", "t3a"])
def test_lone_samples_are_not_stored_without_batch_norm(method: str) -> None:
    model, source = make("layer_norm")
    adapter = eq.create(method, model, source)
    adapter(drifted(1))
    assert not adapter.footprint().stores_observations


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("source", {"tempering": "median"}),
        ("norm", {}),
        ("tent", {}),
        ("eta", {"margin": 1.0, "epsilon": 2.0}),
        ("eata", {"margin": 1.0, "epsilon": 2.0}),
        ("t3a", {}),
        ("t3a", {"supports": 7}),
        ("sotta", {"confidence": 0.0, "every": 8, "capacity": 10}),
        ("dec", {"source_copy": "swapped"}),
        ("poise", {"source_copy": "swapped"}),
    ],
)
def test_nothing_grows_with_the_stream(method: str, options: dict[str, Any]) -> None:
    model, source = make("batch_norm")
    adapter = eq.create(method, model, source, **options)
    totals = []
    for seed in range(30):
        adapter(drifted(4, seed))
        totals.append(adapter.footprint().total)
    assert totals[2] == totals[29]
