"""LAME against formulas written out here, with loops over samples."""

import math

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.verdict import no_free_reads
from equipoise.methods.lame import corrected
from equipoise.methods.parts.linear_head import HeadAnswers
from tests.support.models import MODELS, Counting, drifted, images, make, measured, same, snapshot, step_of


def unit_features(model: nn.Module, x: Tensor) -> list[list[float]]:
    with torch.no_grad():
        features = nn.Sequential(*list(model.children())[:-1])(x).double()
    return [(f / f.norm()).tolist() if float(f.norm()) else f.tolist() for f in features]


def affinity(units: list[list[float]], kind: str, neighbours: int) -> Tensor:
    count = len(units)
    apart = [[math.dist(one, other) for other in units] for one in units]
    found = torch.zeros(count, count, dtype=torch.float64)
    last = []
    for row in range(count):
        others = sorted((apart[row][column], column) for column in range(count) if column != row)[:neighbours]
        last.append(others[-1][0] if others else 0.0)
        for _, column in others:
            found[row, column] = 1.0
    if kind == "knn" or count == 1:
        return found
    width = sum(last) / count
    return torch.tensor([[math.exp(-(d**2) / (2 * width**2)) for d in row] for row in apart]).double()


def by_hand(z: Tensor, k: Tensor) -> tuple[Tensor, int]:
    """The assignments Y, and the rounds that they took."""
    p = z.double().softmax(1)
    y, energy = p, math.nan
    for rounds in range(1, 101):
        y = p * (k @ y).exp()
        y = y / y.sum(1, keepdim=True)
        new = float((y * (y.log() - p.log()) - y * (k @ y)).sum())
        if abs(new - energy) <= 1e-8 * abs(energy):
            return y, rounds
        energy = new
    return y, 100


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("form", "neighbours"), [("knn", 5), ("knn", 1), ("rbf", 5), ("rbf", 2)])
def test_two_batches_are_exact(kind: str, form: str, neighbours: int) -> None:
    model, _ = make(kind)
    adapter = eq.create("lame", model, affinity=form, neighbours=neighbours)
    for seed, rows in enumerate([16, 3, 2]):
        x = drifted(rows, seed)
        with torch.no_grad():
            z = model(x)
        expected, _ = by_hand(z, affinity(unit_features(model, x), form, neighbours))
        assert torch.allclose(adapter(x).double().softmax(1), expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(z.double().softmax(1), expected, atol=1e-3)


def test_answers_are_logits_and_not_probabilities() -> None:
    model, _ = make()
    answer = eq.create("lame", model)(drifted(12))
    assert not torch.allclose(answer.sum(1), torch.ones(12))
    assert torch.allclose(answer.softmax(1).sum(1), torch.ones(12))
    # A model that answers with probabilities is warned of; this one must not be.
    assert (answer < 0).any()


def test_a_batch_of_one_is_answered_by_the_source_model() -> None:
    model, _ = make()
    for form in ("knn", "rbf"):
        adapter = eq.create("lame", model, affinity=form, memory_format="contiguous")
        assert torch.equal(adapter(drifted(1)), adapter.predict(drifted(1)))


def test_predict_is_the_source_model_and_nothing_is_kept() -> None:
    model, _ = make()
    adapter = eq.create("lame", model)
    before = snapshot(adapter)
    adapter(drifted(8))
    assert (step_of(adapter).updated, step_of(adapter).used) == (False, 0)
    assert same(before, snapshot(adapter))
    with torch.no_grad():
        assert torch.equal(adapter.predict(drifted(8)), model(drifted(8)))


def test_tempering_asks_the_source_model_no_second_time() -> None:
    model = Counting(make()[0])
    adapter = eq.create("lame", model, measured(model, [images(32)]), tempering="sample")
    for call in (adapter, adapter.predict):
        Counting.forwards = 0
        call(drifted(8))
        assert Counting.forwards == 1


@pytest.mark.parametrize("form", ["knn", "rbf"])
def test_rounds_that_the_host_cannot_stop_change_nothing(form: str) -> None:
    model, _ = make()
    adapter = eq.create("lame", model, affinity=form)
    stopped = adapter(drifted(16))
    with no_free_reads():
        assert torch.equal(adapter(drifted(16)), stopped)


def test_neighbours_of_one_class_correct_a_sample_that_is_unsure() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    angles = torch.tensor([0.2, 0.25, 0.3, 0.35, 0.8])  # the last is just beyond the border, at π/4
    x = 3 * torch.stack([angles.cos(), angles.sin()], 1)
    assert model(x).argmax(1).tolist() == [0, 0, 0, 0, 1]
    assert eq.create("lame", model)(x).argmax(1).tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("form", ["knn", "rbf"])
def test_identical_samples_and_more_neighbours_than_samples(form: str) -> None:
    model, _ = make()
    answer = eq.create("lame", model, affinity=form, neighbours=50)(drifted(1).expand(6, -1, -1, -1).clone())
    assert answer.isfinite().all()
    assert torch.allclose(answer, answer[:1].expand(6, -1), atol=1e-5)


@pytest.mark.parametrize("form", ["knn", "rbf"])
def test_a_sample_that_overflows_is_nobodys_neighbour(form: str) -> None:
    model, _ = make("norm_free")
    model = nn.Sequential(*list(model.children())[:2], nn.Linear(8, 5)).eval()  # nothing bounds it
    adapter, x = eq.create("lame", model, affinity=form), drifted(6)
    huge = torch.cat([x, torch.full_like(x[:1], 3e38)])
    assert torch.allclose(adapter(huge)[:6], adapter(x), atol=1e-5)


def test_a_model_without_a_linear_head_is_refused_in_the_first_batch() -> None:
    adapter = eq.create("lame", nn.Sequential(make()[0], nn.Tanh()))
    with pytest.raises(eq.errors.ModelError, match="needs a linear head"):
        adapter(drifted(4))


def test_classes_that_nearly_balance_are_not_settled_too_early() -> None:
    # Two groups hold classes of their own for many rounds, in which the energy moves by less than single
    # precision can show, until the larger one wins.
    for seed, between in ((13, 0.4046630859375), (16, 0.7874374389648438), (26, 0.59765625)):
        generator = torch.Generator().manual_seed(seed)
        group = (torch.arange(64) >= int(torch.randint(33, 45, (), generator=generator))).long()
        affinities = torch.where(group.unsqueeze(1) == group, 1.0, between)
        logits = nn.functional.one_hot(group, 3) * 3 * torch.rand(1, generator=generator)
        logits += 0.2 * torch.randn(64, 3, generator=generator)
        expected, rounds = by_hand(logits, affinities.double())
        assert rounds > 10
        assert expected.argmax(1).unique().numel() == 1
        seen = HeadAnswers(logits, logits, nn.Linear(3, 3), torch.ones(64, dtype=torch.bool))
        assert torch.allclose(corrected(seen, affinities).double().softmax(1), expected, atol=1e-5)
