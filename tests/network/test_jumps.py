"""Statistics that start again when the inputs jump, by running moments written out here."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.network.running_statistics import SIZES, Jumps, divergence, following_statistics
from tests.support.divergence import plain_divergence
from tests.support.models import drifted, images, make
from tests.support.rehearsals import samples, trained

EPS = 1e-5
FAR, NEVER = 0.0, 1e9


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
    before = {name: tensor.clone() for name, tensor in adapter.student.named_buffers()}
    for x in (drifted(8), 40 * images(8, 1) + 30):
        adapter(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.student.named_buffers())
    assert float(adapter.memory["age"]) == 1e6


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
    assert float(adapter.memory["age"]) == 1e6
    adapter(images(8))
    assert float(adapter.memory["age"]) == 1e6
    far = 40 * images(8, 1) + 30
    adapter(far)
    assert float(adapter.memory["age"]) == 8
    adapter(far)
    assert float(adapter.memory["age"]) == 16
    state = adapter.state_dict()
    assert float(state["poise.memory.age"]) == 16
    adapter.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", make()[0])
    assert float(again.memory["age"]) == 16
    assert torch.equal(again(far), adapter(far))
    adapter.reset()
    assert float(adapter.memory["age"]) == 1e6
    adapter.load_state_dict(state)
    assert float(adapter.memory["age"]) == 16
    adapter(torch.full((8, 3, 6, 6), 1e30))  # undone
    assert adapter.last is not None
    assert not adapter.last.updated
    assert float(adapter.memory["age"]) == 16


@pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "norm_free"])
def test_a_model_without_batch_norm_has_no_jumps(kind: str) -> None:
    adapter = poise(kind)
    assert adapter.source is not None
    assert not len(adapter.source.norm_limits)
    adapter(drifted(8))
    assert "age" not in adapter.memory
    assert "poise.memory.age" not in adapter.state_dict()


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
