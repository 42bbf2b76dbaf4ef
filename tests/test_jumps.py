"""Statistics that start anew when the inputs jump, by running moments written out here."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.network.following import SIZES, Jumps, SampleMoments, divergence, following_statistics
from tests.rehearsals import samples, trained
from tests.toys import drifted, images, make

EPS = 1e-5
FAR, NEVER = 0.0, 1e9


def plain_divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, eps: float) -> float:
    """The mean over channels of ln(1 + both Kullback-Leibler divergences of two normals)."""
    total = 0.0
    for m, v, n, w in zip(*(t.double().tolist() for t in (mean, var, other_mean, other_var)), strict=True):
        v, w = v + eps, w + eps
        there = 0.5 * (math.log(w / v) + (v + (m - n) ** 2) / w - 1)
        back = 0.5 * (math.log(v / w) + (w + (m - n) ** 2) / v - 1)
        total += math.log(1 + there + back)
    return total / len(mean)


def test_the_divergence_of_two_normals() -> None:
    draw = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 6, generator=draw)
    var, wide = 0.1 + torch.rand(2, 6, generator=draw)
    found = float(divergence(mean, var, other, wide, EPS))
    assert found == pytest.approx(plain_divergence(mean, var, other, wide, EPS), rel=1e-4)
    assert float(divergence(other, wide, mean, var, EPS)) == pytest.approx(found, rel=1e-4)
    assert float(divergence(mean, var, mean, var, EPS)) == pytest.approx(0, abs=1e-6)
    both = divergence(torch.stack([mean, other]), torch.stack([var, wide]), other, wide, EPS)
    assert both.tolist() == pytest.approx([found, 0], abs=1e-5)


def test_limits_between_the_sizes_are_interpolated_over_the_logarithm() -> None:
    assert SIZES == (1, 2, 5, 10, 25, 50)
    jumps = Jumps(torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [60.0, 50, 40, 30, 20, 10]]), torch.zeros(()))
    for size, limit in zip(SIZES, (6, 5, 4, 3, 2, 1), strict=True):
        assert float(jumps.limit(0, size)) == pytest.approx(limit)
        assert float(jumps.limit(1, size)) == pytest.approx(10 * limit)
    assert float(jumps.limit(0, 3)) == pytest.approx(5 - math.log(3 / 2) / math.log(5 / 2))
    assert float(jumps.limit(0, 40)) == pytest.approx(2 - math.log(40 / 25) / math.log(2))
    assert float(jumps.limit(0, 200)) == 1


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
    assert adapter.kept["age"] >= 1e6  # it is the source data: no jump
    adapter(100 + 50 * batches[0])
    assert (adapter.kept["age"] <= 32 * 4) or kind is Summed


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


class Mirror:
    """Running moments of one layer: joined by a share, in double precision."""

    def __init__(self, layer: nn.Module) -> None:
        self.mean = layer.get_buffer("running_mean").double().clone()
        self.second = layer.get_buffer("running_var").double() + self.mean**2

    def join(self, x: Tensor, share: float) -> None:
        flat = x.double().transpose(0, 1).reshape(x.shape[1], -1)
        self.mean = (1 - share) * self.mean + share * flat.mean(1)
        self.second = (1 - share) * self.second + share * (flat**2).mean(1)

    def matches(self, layer: nn.Module) -> None:
        mean, var = layer.get_buffer("running_mean").double(), layer.get_buffer("running_var").double()
        torch.testing.assert_close(mean, self.mean, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(var, self.second - self.mean**2, rtol=1e-3, atol=1e-4)


def norm_layer() -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3).eval()
    draw = torch.Generator().manual_seed(0)
    layer.get_buffer("running_mean").copy_(torch.randn(3, generator=draw))
    layer.get_buffer("running_var").copy_(1 + torch.rand(3, generator=draw))
    return layer


def stream(count: int, rows: int, centre: float, seed: int = 1) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [centre + torch.randn(rows, 3, 4, 5, generator=draw) for _ in range(count)]


def follow(layer: nn.Module, x: Tensor, limit: float, age: Tensor) -> Tensor:
    jumps = Jumps(torch.full((1, 6), limit), age)
    with torch.no_grad(), following_statistics(layer, 0.1, jumps=jumps) as followed:
        layer(x)
    assert followed.age is not None
    return followed.age


def test_after_a_jump_statistics_are_the_average_of_all_samples_since() -> None:
    layer, age = norm_layer(), torch.tensor(1e6)
    mirror, batches = Mirror(layer), stream(30, 20, 5.0)
    for at, x in enumerate(batches):
        age = follow(layer, x, FAR if at == 0 else NEVER, age)
        mirror.join(x, max(1 / (at + 1), 1 - 0.9 ** (20 / 50)))  # 1, 1/2, 1/3 ... until it is as slow as ever
        mirror.matches(layer)
        assert float(age) == 20 * (at + 1)
        if at < 20:  # 1 / 21 is the first that is slower
            everything = torch.cat(batches[: at + 1]).transpose(0, 1).reshape(3, -1)
            torch.testing.assert_close(
                layer.get_buffer("running_mean"), everything.mean(1), rtol=1e-3, atol=1e-4
            )


def test_a_jump_is_seen_by_the_divergence_of_the_batch() -> None:
    x = stream(1, 20, 0.5)[0]
    flat = x.transpose(0, 1).reshape(3, -1)
    layer = norm_layer()
    own = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
    far = plain_divergence(flat.mean(1), flat.var(1, correction=0), *own, layer.eps)
    assert float(follow(norm_layer(), x, 1.01 * far, torch.tensor(1e6))) == 1e6
    assert float(follow(norm_layer(), x, 0.99 * far, torch.tensor(1e6))) == 20


def test_without_a_jump_it_is_the_formula_without_jumps() -> None:
    plain, watched, age = norm_layer(), norm_layer(), torch.tensor(1e6)
    for x in (*stream(3, 20, 2.0), *stream(3, 1, 4.0), *stream(2, 60, -1.0)):
        with torch.no_grad(), following_statistics(plain, 0.1):
            plain(x)
        age = follow(watched, x, NEVER, age)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(watched.get_buffer(name), plain.get_buffer(name), rtol=1e-6, atol=1e-6)
    assert float(age) == 1e6


def test_samples_that_come_alone_replace_the_statistics_by_sixteenths() -> None:
    layer, age = norm_layer(), torch.tensor(1e6)
    mirror = Mirror(layer)
    for at, x in enumerate(stream(40, 1, 5.0)):
        age = follow(layer, x, FAR if at == 0 else NEVER, age)
        mirror.join(x, 1 / max(at + 1, 16))
        mirror.matches(layer)
        assert float(age) == at + 1


def test_statistics_start_anew_from_the_layer_that_sees_the_jump() -> None:
    model = nn.Sequential(norm_layer(), norm_layer(), norm_layer()).eval()
    mirrors = [Mirror(layer) for layer in model]
    x = stream(1, 20, 3.0)[0]
    jumps = Jumps(torch.tensor([[NEVER] * 6, [FAR] * 6]), torch.tensor(1e6))  # the third is not watched
    inputs: list[Tensor] = []
    for layer in model:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad(), following_statistics(model, 0.1, jumps=jumps) as followed:
        model(x)
    for mirror, layer, values, share in zip(mirrors, model, inputs, (1 - 0.9**0.4, 1, 1), strict=True):
        mirror.join(values, share)
        mirror.matches(layer)
    assert followed.age is not None
    assert float(followed.age) == 20


def test_statistics_that_do_not_follow_do_not_jump_either() -> None:
    model, source = make()
    adapter = eq.Poise(model, source, tempering="none", norm_momentum=0)
    before = {name: tensor.clone() for name, tensor in adapter.statistics.items()}
    for x in (drifted(8), 40 * images(8, 1) + 30):
        adapter(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.statistics.items())
    assert float(adapter.kept["age"]) == 1e6


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    layer, x = norm_layer().to(dtype), stream(1, 20, 5.0)[0].to(dtype)
    mirror = Mirror(layer)
    follow(layer, x, FAR, torch.tensor(1e6))
    mirror.join(x, 1)
    torch.testing.assert_close(layer.get_buffer("running_mean").double(), mirror.mean, rtol=1e-2, atol=1e-2)


def poise(kind: str = "batch_norm") -> eq.Adapter:
    model, source = make(kind)
    return eq.create("poise", model, source, tempering="none")


def test_poise_keeps_the_age_of_its_statistics(tmp_path: Path) -> None:
    adapter = poise()
    assert float(adapter.kept["age"]) == 1e6
    adapter(images(8))
    assert float(adapter.kept["age"]) == 1e6
    far = 40 * images(8, 1) + 30
    adapter(far)
    assert float(adapter.kept["age"]) == 8
    adapter(far)
    assert float(adapter.kept["age"]) == 16
    state = adapter.state_dict()
    assert float(state["poise.kept.age"]) == 16
    adapter.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", make()[0])
    assert float(again.kept["age"]) == 16
    assert torch.equal(again(far), adapter(far))
    adapter.reset()
    assert float(adapter.kept["age"]) == 1e6
    adapter.load_state_dict(state)
    assert float(adapter.kept["age"]) == 16
    before = adapter.kept["age"]
    adapter(torch.full((8, 3, 6, 6), 1e30))  # undone
    assert adapter.last is not None
    assert not adapter.last.updated
    assert adapter.kept["age"] is before


@pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "norm_free"])
def test_a_model_without_batch_norm_has_no_jumps(kind: str) -> None:
    adapter = poise(kind)
    assert adapter.source is not None
    assert not len(adapter.source.norm_limits)
    adapter(drifted(8))
    assert "age" not in adapter.kept
    assert "poise.kept.age" not in adapter.state_dict()


def test_statistics_made_by_hand_know_no_limits() -> None:
    adapter = eq.Poise(make()[0], eq.SourceStatistics(1.0, 2.0, 5), tempering="none")
    adapter(drifted(8))
    assert "age" not in adapter.kept


def test_limits_are_saved(tmp_path: Path) -> None:
    source = make()[1]
    source.save(tmp_path / "source.safetensors")
    again = eq.SourceStatistics.load(tmp_path / "source.safetensors")
    assert torch.equal(again.norm_limits, source.norm_limits)
    assert source.norm_limits.shape == (2, 6)


def test_a_stream_that_jumps_is_followed_at_once() -> None:
    model = trained()
    x, y = samples(200, seed=5)
    source = eq.SourceStatistics.measure(model, [samples(200, seed=6)[0]], progress=False)
    adapter = eq.Poise(model, source, tempering="none")
    slow = eq.Poise(model, eq.SourceStatistics(source.h0, source.kappa, 4), tempering="none")
    far = 6 * x[:50] + 20
    right = [int((each(far).argmax(1) == y[:50]).sum()) for each in (adapter, slow)]
    assert right[0] > right[1]
    assert right[0] > 40
