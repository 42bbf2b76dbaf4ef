"""Limits of the divergence of source batches, against divergences written out here."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.source_moments import SampleMoments
from equipoise.network.running_statistics import SIZES
from tests.support.divergence import plain_divergence
from tests.support.models import drifted, make


class Small(nn.Module):
    """Two batch norms, one of images and one of features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.BatchNorm2d(3), nn.BatchNorm1d(3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(x).amax((2, 3))))
        return logits


def small() -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Small().eval()


def test_limits_are_those_of_source_samples_sorted_by_class() -> None:
    model, x = small(), torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    x = x + 3 * torch.eye(3)[torch.arange(64) % 3].view(64, 3, 1, 1)
    source = eq.SourceStatistics.measure(model, list(x.split(20)), progress=False)
    assert source.norm_limits.shape == (2, 6)
    with torch.no_grad():
        order = sorted(range(64), key=lambda row: int(model(x[row : row + 1]).argmax()))
        inner = model.first(x).amax((2, 3))
    assert order != list(range(64))
    for place, (layer, values) in enumerate(((model.first, x), (model.second, inner))):
        for column, size in enumerate(SIZES):
            largest = 0.0
            for start in range(0, 64 // size * size, size):
                rows = values[order[start : start + size]].double()
                flat = rows.transpose(0, 1).reshape(3, -1)
                mean, var = flat.mean(1), flat.var(1, correction=0)
                own = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
                largest = max(largest, plain_divergence(mean, var, *own, layer.eps))
            assert float(source.norm_limits[place, column]) == pytest.approx(3 * largest, rel=1e-3)


def test_samples_that_are_not_finite_set_no_limit() -> None:
    model, x = small(), torch.randn(40, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    clean = eq.SourceStatistics.measure(model, [x[:30]], progress=False).norm_limits
    x[30:] = torch.nan
    with pytest.warns(UserWarning, match="10 of 40 source samples"):
        spoilt = eq.SourceStatistics.measure(model, [x], progress=False).norm_limits
    torch.testing.assert_close(spoilt, clean)


def test_only_so_many_samples_are_gathered() -> None:
    moments = SampleMoments(small(), most=10)
    model, count = small(), 0
    moments = SampleMoments(model, most=10)
    while not moments.full:
        with moments.gathering(), torch.no_grad():
            logits = model(torch.randn(4, 3, 4, 4))
        moments.name(logits.argmax(1), torch.ones(4, dtype=torch.bool))
        count += 1
    assert count == 3
    assert not model.first._forward_pre_hooks
    assert SampleMoments(nn.Linear(2, 2)).full
    assert SampleMoments(nn.Linear(2, 2)).limits().shape == (0, 6)


class Folded(nn.Module):
    """Normalises the frames of all samples together, as models of films do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x.flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1))
        return logits


class Spare(nn.Module):
    """Has a batch norm that is not used in eval mode, as auxiliary heads are."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.norm, self.head = nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x.mean(1)))
        return logits


class Twice(Spare):
    """Uses one batch norm twice."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.norm(x.mean(1)).relu()))
        return logits


class Summed(Spare):
    """Normalises one row for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean(1) + self.norm(x.mean((0, 1))[None]))
        return logits


@pytest.mark.parametrize("kind", [Folded, Spare, Twice, Summed])
def test_models_whose_batch_norms_are_used_in_other_ways(kind: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().eval()
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(rows, 4, 6, generator=draw) for rows in (32, 32, 7)]
    with_bad = batches[0].clone()
    with_bad[3] = torch.nan
    if kind is not Summed:
        with pytest.warns(UserWarning, match="1 of 39"):
            eq.SourceStatistics.measure(model, [with_bad, batches[2]], progress=False)
    source = eq.SourceStatistics.measure(model, batches, progress=False)
    assert bool(source.norm_limits.isfinite().all())
    adapter = eq.Poise(model, source, tempering="none")
    for x in batches:
        assert bool(adapter(x).isfinite().all())
    assert adapter.memory["age"] >= 1e6  # it is the source data: no jump
    adapter(100 + 50 * batches[0])
    assert (adapter.memory["age"] <= 32 * 4) or kind is Summed


def test_the_limits_of_folded_samples_are_those_of_their_rows() -> None:
    model, x = Folded().eval(), torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(1))
    limits = eq.SourceStatistics.measure(model, [x], progress=False).norm_limits
    with torch.no_grad():
        order = sorted(range(8), key=lambda row: int(model(x[row : row + 1]).argmax()))
    rows = torch.cat([x[row] for row in order])
    own = model.norm.get_buffer("running_mean"), model.norm.get_buffer("running_var")
    for column, size in ((2, 5), (3, 10)):
        parts = [rows[at : at + size] for at in range(0, 32 // size * size, size)]
        expected = max(plain_divergence(p.mean(0), p.var(0, correction=0), *own, 1e-5) for p in parts)
        assert float(limits[0, column]) == pytest.approx(3 * expected, rel=1e-3)


def test_limits_are_saved(tmp_path: Path) -> None:
    source = make()[1]
    source.save(tmp_path / "source.safetensors")
    again = eq.SourceStatistics.load(tmp_path / "source.safetensors")
    assert torch.equal(again.norm_limits, source.norm_limits)
    assert source.norm_limits.shape == (2, 6)


def test_source_statistics_without_limits_see_no_jump() -> None:
    adapter = eq.Poise(make()[0], eq.SourceStatistics(1.0, 2.0, 5), tempering="none")
    adapter(drifted(8))
    assert "age" not in adapter.memory
